"""Whitens what a model's last layer sees, by public examples: a change of its coordinates.

The last layer of a classifier is logits = h K + b, of features h [m]. Features that public data
trained are correlated, so that steps on K are slow in most directions; and a client's clipped
update and its noise weigh all directions of K alike. With A = (cov(h) + lambda I)^(-1/2) and the
mean of h from public examples, the layer is trained as

  logits = (h - mean) A V + c,     K = A V,     b = c - mean A V

from the same function: V = A^(-1) K, c = b + mean K. Clients, clip, mask and noise see V and c.
A and the mean are non-trainable weights: they go with the model, and no round changes them.

Privacy: A and the mean follow from public examples and public weights, before the first round.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

# lambda over the mean variance of a feature. On 5,000 held-out images 0.01, 0.03 and 0.1 end alike.
_RIDGE = 0.03
_BATCH = 250


def whitened(
    model: tff.learning.models.FunctionalModel,
) -> tff.learning.models.FunctionalModel:
  """Returns the model with the last layer in whitened coordinates: at first A = I, mean = 0.

  Args:
    model: A model whose last trainable weights are the matrix float32[m, classes] and the bias
      float32[classes] of its last layer.

  Returns:
    The same function of other weights: two more non-trainable ones, A float32[m, m] and the mean
    float32[m]. `fitted` sets them, `plain` takes weights back to those of `model`.

  Raises:
    ValueError: If the last weights are no matrix and bias.
  """
  trainable, non_trainable = model.initial_weights
  kernel = _last_kernel(trainable)
  identity = (np.eye(len(kernel), dtype=np.float32), np.zeros(len(kernel), np.float32))

  @tf.function
  def predict_on_batch(model_weights, x, training):
    return model.predict_on_batch(_plain(*model_weights), x, training=training)

  return tff.learning.models.FunctionalModel(
      initial_weights=(trainable, (*non_trainable, *identity)),
      predict_on_batch_fn=predict_on_batch,
      loss_fn=model.loss,
      input_spec=model.input_spec,
  )


def plain(
    weights: tff.learning.models.ModelWeights,
) -> tff.learning.models.ModelWeights:
  """Returns the weights of the model itself that are the same function as whitened ones."""
  return tff.learning.models.ModelWeights(*_plain(weights.trainable, weights.non_trainable))


def fitted(
    model: tff.learning.models.FunctionalModel,
    weights: tff.learning.models.ModelWeights,
    examples: tuple[np.ndarray, np.ndarray],
    is_scored: Callable[[Any], Any],
) -> tff.learning.models.ModelWeights:
  """Returns whitened weights that are the same function, with A and the mean of public examples.

  Args:
    model: The model itself, of which `weights` are.
    weights: The weights that public examples trained.
    examples: The public examples, x and labels.
    is_scored: As `Task.is_scored`: features of other labels, such as padding, don't count.

  Raises:
    ValueError: If the model does not end in a dense layer, or the public examples do not differ there.
  """
  *before, kernel, bias = weights.trainable
  kernel, bias = np.asarray(kernel, np.float64), np.asarray(bias, np.float64)
  features, logits = _features(model, weights, examples, is_scored)
  if not np.allclose(features @ kernel + bias, logits, rtol=1e-3, atol=1e-3):
    raise ValueError('the model does not end in a dense layer whose outputs are its logits.')
  # Last bits of equal examples may differ by their place in a batch.
  if not len(features) or np.ptp(features, axis=0).max() <= 1e-5 * np.abs(features).max():
    raise ValueError('the inputs of the last layer are the same for all public examples.')
  mean = features.mean(0)
  centered = features - mean
  values, vectors = np.linalg.eigh(centered.T @ centered / len(centered))
  values += _RIDGE * values.mean()
  whitening = (vectors * values**-0.5) @ vectors.T
  return tff.learning.models.ModelWeights(
      (
          *before,
          ((vectors * values**0.5) @ (vectors.T @ kernel)).astype(np.float32),
          (bias + mean @ kernel).astype(np.float32),
      ),
      (*weights.non_trainable, whitening.astype(np.float32), mean.astype(np.float32)),
  )


def _features(model, weights, examples, is_scored) -> tuple[np.ndarray, np.ndarray]:
  """Returns what the last layer sees and returns of each scored label, float64[labels, m] and logits."""
  *before, kernel, bias = weights.trainable
  size, classes = np.shape(kernel)
  # With columns of an identity for K, the logits are features: as many at once as there are classes.
  identity = np.eye(size, -(-size // classes) * classes, dtype=np.float32)
  x, y = examples
  scored = np.asarray(is_scored(tf.constant(y)))

  def outputs(kernel, bias):
    reading = ((*before, kernel, bias), weights.non_trainable)
    return np.concatenate([
        model.predict_on_batch(reading, tf.constant(x[i : i + _BATCH]), training=False)
        for i in range(0, len(x), _BATCH)
    ])[scored].astype(np.float64)

  blocks = [
      outputs(columns, np.zeros_like(bias))
      for columns in np.split(identity, identity.shape[1] // classes, axis=1)
  ]
  return np.concatenate(blocks, axis=1)[:, :size], outputs(kernel, bias)


def _plain(trainable: Any, non_trainable: Any) -> tuple[tuple, tuple]:
  *before, values, constant = trainable
  *others, whitening, mean = non_trainable
  kernel = tf.matmul(whitening, values)
  bias = constant - tf.linalg.matvec(kernel, mean, transpose_a=True)
  return (*before, kernel, bias), tuple(others)


def _last_kernel(trainable: Any) -> np.ndarray:
  shapes = [np.shape(weight) for weight in trainable[-2:]]
  if [len(shape) for shape in shapes] != [2, 1] or shapes[0][1] != shapes[1][0]:
    raise ValueError(
        "`model` must end in a dense layer, so that its last weights are a matrix and a bias."
        f' Found weights of shapes {shapes}.'
    )
  return trainable[-2]
