"""The labels that a classifier predicts, in the shape of the labels that it is compared with."""

import tensorflow as tf

from tasks import errors


def predicted_labels(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """Returns the predicted labels, of the type and the shape of `labels`.

  Args:
    logits: A model's output: one logit per class in the last dimension; or a single logit of class
      1 against class 0, with or without a dimension for it.
    labels: Classes, integers, one for each vector of logits. They may have a last dimension of
      size 1, as TFF's tutorials make labels.

  Raises:
    InputError: If the shapes do not fit: their comparison would broadcast, and count wrongly.
  """
  if logits.shape.rank == 1 or logits.shape[-1] == 1:
    predicted = logits > 0
  else:
    predicted = tf.argmax(logits, axis=-1)
  sizes = [tf.TensorShape([n for n in t.shape[1:] if n != 1]) for t in (predicted, labels)]
  if not sizes[0].is_compatible_with(sizes[1]):
    raise errors.InputError(
        f'Labels of shape {labels.shape} for logits of shape {logits.shape} are not one class for'
        ' each vector of logits. Return classes, int32, from `load` of the task (of one-hot labels'
        ' `np.argmax(y, axis=-1)`).'
    )
  return tf.cast(tf.reshape(predicted, tf.shape(labels)), labels.dtype)
