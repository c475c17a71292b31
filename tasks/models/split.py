"""Models that end in a dense layer, and that layer alone on features of a frozen body.

The last layer of a classifier is logits = h K + b, of features h [m]. Features of a pre-trained
body are correlated, so that steps on K are slow in most directions; and a client's clipped update
and its noise weigh all directions of K alike. With A = (cov(h) + lambda I)^(-1/2) and the mean of h
from public examples, clients train the same function as

  logits = g V + c,     g = (h - mean) A,     K = A V,     b = c - mean K.

The body, A and the mean never change, so that a client's examples are g and its labels: ordinary
data of an ordinary model.

Privacy: the body, A and the mean follow from public examples, before the first round.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

# lambda / mean variance of a feature. 0.01, 0.03 and 0.1 do equally well on 5,000 images.
_RIDGE = 0.03
# Features are kept as int8, in steps of 1/16 up to +-8: a quarter of the memory of float32. Whitened
# public features have variance 1 at most, and rounding adds (1/16)^2 / 12 = 0.0003 to it.
_FEATURE_TYPE, _STEPS = tf.int8, 16

Body = Callable[[Sequence[tf.Tensor], tf.Tensor], tf.Tensor]


class SplitModel(tff.learning.models.FunctionalModel):
  """A body and a dense last layer.

  Attributes:
    body: Maps the body's weights and x to features float32[..., m], one vector per label.
  """

  def __init__(
      self, body: Body, weights: Sequence[np.ndarray], loss_fn: Callable[..., tf.Tensor],
      input_spec: Any,
  ):
    """Initializes.

    Args:
      body: See the attribute.
      weights: The body's weights, then the last layer's: kernel [m, classes] and bias [classes].
      loss_fn: Maps logits, labels and `sample_weight` (optional, unused) to the mean loss.
      input_spec: The `tf.TensorSpec`s of x and of labels, with a batch dimension.
    """

    @tf.function
    def predict_on_batch(model_weights, x, training):
      del training
      *body_weights, kernel, bias = model_weights[0]
      return tf.tensordot(body(body_weights, x), kernel, 1) + bias

    super().__init__(
        initial_weights=(tuple(weights), ()), predict_on_batch_fn=predict_on_batch,
        loss_fn=loss_fn, input_spec=input_spec,
    )
    self.body = body

  @property
  def num_classes(self) -> int:
    """The number of classes; two if there is one logit."""
    return max(2, len(self.initial_weights[0][-1]))

  def head(self) -> tff.learning.models.FunctionalModel:
    """Returns the last layer as a model of features and labels."""
    *_, kernel, bias = self.initial_weights[0]
    _, labels = self.input_spec
    sizes = [size for size in labels.shape[1:] if size != 1]  # Labels may be a column [N, 1].
    spec = tf.TensorSpec([None, *sizes, len(kernel)], _FEATURE_TYPE), labels
    body = lambda weights, features: tf.cast(features, tf.float32) / _STEPS  # noqa: E731
    return SplitModel(body, (kernel, bias), self.loss, spec)


class FrozenBody(NamedTuple):
  """A body and the whitening of its features, which no round changes.

  Attributes:
    body: See `SplitModel`.
    weights: The body's weights.
    matrix: A, float32[m, m].
    mean: float32[m].
  """

  body: Body
  weights: Sequence[np.ndarray]
  matrix: np.ndarray
  mean: np.ndarray

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    """Returns whitened features in steps, int8[..., m]."""
    steps = tf.tensordot(self.body(self.weights, x) - self.mean, _STEPS * self.matrix, 1)
    return tf.cast(tf.round(tf.clip_by_value(steps, -127, 127)), _FEATURE_TYPE)

  def head_of(self, kernel: np.ndarray, bias: np.ndarray) -> tff.learning.models.ModelWeights:
    """Returns the head's weights, V and c, of a last layer's K and b."""
    values = np.linalg.solve(self.matrix.astype(np.float64), kernel).astype(np.float32)
    return tff.learning.models.ModelWeights((values, bias + self.mean @ kernel), ())

  def weights_of(self, head: tff.learning.models.ModelWeights) -> tff.learning.models.ModelWeights:
    """Returns the weights of the whole model that computes the head's function."""
    values, constant = head.trainable
    kernel = self.matrix @ values
    trainable = (*self.weights, kernel, constant - self.mean @ kernel)
    return tff.learning.models.ModelWeights(trainable, ())


def whitening(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns A and the mean of features float[n, m].

  Raises:
    ValueError: If the features do not differ.
  """
  features = features.astype(np.float64)
  # The last bits of equal examples may differ by their place in a batch.
  if not len(features) or np.ptp(features, axis=0).max() <= 1e-5 * np.abs(features).max():
    raise ValueError('the inputs of the last layer are the same for all public examples.')
  mean = features.mean(0)
  centered = features - mean
  values, vectors = np.linalg.eigh(centered.T @ centered / len(centered))
  values += _RIDGE * values.mean()
  matrix = (vectors * values**-0.5) @ vectors.T
  return matrix.astype(np.float32), mean.astype(np.float32)
