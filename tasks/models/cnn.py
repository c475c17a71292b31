"""The paper's image CNNs as `FunctionalModel`s."""

from collections.abc import Sequence

import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import initializers
from tasks.models import pooling

_KERNEL = 5
_WHITE = 255.0


def _cross_entropy(logits, labels, sample_weight=None):
  """Mean over everything that `labels` labels, as Keras's loss."""
  del sample_weight
  return tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  )


def cnn(
    image_shape: Sequence[int],
    filters: Sequence[int],
    dense_units: Sequence[int],
    num_classes: int,
    initializer: initializers.Initializer,
) -> tff.learning.models.FunctionalModel:
  """5x5 convolutions with 2x2 max-pooling and ReLU, then dense layers, ReLU between.

  Section 5 of the paper: Fashion-MNIST takes filters 32, 64 and one dense layer
  of 512 (1,663,370 parameters); SVHN filters 64, 128 and dense 384, 192
  (3,431,754).

  Args:
    image_shape: Height, width and channels of an image.
    filters: Output channels of each convolution.
    dense_units: Units of each hidden dense layer.
    num_classes: Number of logits.
    initializer: Draws the initial weights.

  Returns:
    A model of images uint8[B, H, W, C] with labels int32[B].
  """
  height, width, channels = image_shape
  weights = []
  for outputs in filters:
    weights += initializer.dense((_KERNEL, _KERNEL, channels, outputs))
    channels = outputs
    height, width = -(-height // 2), -(-width // 2)
  units = height * width * channels
  for outputs in (*dense_units, num_classes):
    weights += initializer.dense((units, outputs))
    units = outputs

  @tf.function
  def predict_on_batch(model_weights, images, training):
    del training  # Nothing here behaves differently in training.
    layers = iter(model_weights[0])
    out = tf.cast(images, tf.float32) / _WHITE
    for _ in filters:
      kernel, bias = next(layers), next(layers)
      out = tf.nn.bias_add(tf.nn.conv2d(out, kernel, 1, 'SAME'), bias)
      out = tf.nn.relu(pooling.max_pool_2x2(out))
    out = tf.reshape(out, [-1, height * width * channels])
    for _ in dense_units:
      out = tf.nn.relu(tf.matmul(out, next(layers)) + next(layers))
    return tf.matmul(out, next(layers)) + next(layers)

  return tff.learning.models.FunctionalModel(
      initial_weights=(tuple(weights), ()),
      predict_on_batch_fn=predict_on_batch,
      loss_fn=_cross_entropy,
      input_spec=(
          tf.TensorSpec([None, *image_shape], tf.uint8),
          tf.TensorSpec([None], tf.int32),
      ),
  )


def from_keras_images(
    keras_model: tf.keras.Model, image_shape: Sequence[int]
) -> tff.learning.models.FunctionalModel:
  """A Keras classifier of float images, that ends in a softmax, as a `FunctionalModel`.

  Args:
    keras_model: The Keras model, with its initial weights.
    image_shape: Height, width and channels of an image.

  Returns:
    A model of images uint8[B, H, W, C] with labels int32[B], for use in
    `tff.tensorflow.computation`s (TFF's converter sets that limit).
  """
  labels_spec = tf.TensorSpec([None], tf.int32)
  converted = tff.learning.models.functional_model_from_keras(
      keras_model,
      tf.keras.losses.SparseCategoricalCrossentropy(),
      (tf.TensorSpec([None, *image_shape], tf.float32), labels_spec),
  )

  @tf.function
  def predict_on_batch(model_weights, images, training):
    return converted.predict_on_batch(
        model_weights, tf.cast(images, tf.float32) / _WHITE, training=training
    )

  return tff.learning.models.FunctionalModel(
      initial_weights=converted.initial_weights,
      predict_on_batch_fn=predict_on_batch,
      loss_fn=converted.loss,
      input_spec=(tf.TensorSpec([None, *image_shape], tf.uint8), labels_spec),
  )
