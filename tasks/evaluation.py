"""Loss and accuracy of weights on test examples, in this process."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import registry

_BATCH = 250


class Evaluation(NamedTuple):
  """A measurement on test examples.

  Attributes:
    loss: The model's own loss, mean over examples.
    accuracy: Share of the scored labels that the model names, in [0, 1].
  """

  loss: float
  accuracy: float


def build(
    model: tff.learning.models.FunctionalModel,
    is_scored: Callable[[Any], Any],
) -> Callable[[Any, registry.Examples], Evaluation]:
  """Returns a function from weights and test examples to an `Evaluation`."""

  @tf.function(reduce_retracing=True)
  def measure(weights, x, y):
    output = model.predict_on_batch(weights, x, training=False)
    scored = is_scored(y)
    right = tf.argmax(output, axis=-1, output_type=tf.int32) == y
    return (
        model.loss(output, y),
        tf.math.count_nonzero(tf.logical_and(right, scored)),
        tf.math.count_nonzero(scored),
    )

  def evaluate(weights, examples):
    weights = tf.nest.map_structure(
        tf.convert_to_tensor, (weights.trainable, weights.non_trainable)
    )
    x, y = examples
    loss, right, scored = 0.0, 0, 0
    for start in range(0, len(x), _BATCH):
      part = slice(start, start + _BATCH)
      batch_loss, batch_right, batch_scored = measure(weights, x[part], y[part])
      loss += float(batch_loss) * len(x[part])
      right += int(batch_right)
      scored += int(batch_scored)
    return Evaluation(loss / len(x), right / max(scored, 1))

  return evaluate


def subset(examples: registry.Examples, size: Any, seed: int) -> registry.Examples:
  """Random test examples: `size` of them, all if None or more than there are."""
  x, y = examples
  if size is None or size >= len(x):
    return examples
  chosen = np.sort(np.random.default_rng(seed).permutation(len(x))[:size])
  return x[chosen], y[chosen]
