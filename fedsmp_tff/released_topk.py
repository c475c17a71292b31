"""ReleasedTopK: the k coordinates that past releases say move most, without public data."""

from collections.abc import Sequence
import dataclasses

import tensorflow as tf

from fedsmp_tff import post_processing
from fedsmp_tff import sparsifiers

# The least part of the exploration that all tensors share alike.
_EQUAL_SHARE = 0.5
# Coordinates of a tensor that no round kept have one estimate: chance orders them.
_JITTER = 0.01


@dataclasses.dataclass(frozen=True)
class ReleasedTopK(sparsifiers.Kept, post_processing.PostProcessing):
  """The k coordinates of the largest energies that past releases tell; not scaled.

  A share of the k explores: it is drawn at random, half of it from all tensors of the
  model alike, half in proportion to their energies; the others are the largest of
  `post_processing.Energies.estimate`. In the first round all of the k explore.

  It needs nothing but the aggregator's own state, so that it works in any process that
  takes an aggregator. Compare TP-TopK (arXiv 2606.04375), which takes the last round's.

  Privacy: the coordinates are a function of past releases and of public randomness, so
  they are public before the round begins (`post_processing.PostProcessing`).

  Attributes:
    decay: What is left, a round later, of what a release said; in (0, 1].
    explore: The share of k that explores, in [0, 1].
    prior_visits: See `post_processing.Energies.estimate`; positive.
  """

  decay: float = 0.95
  explore: float = 0.1
  prior_visits: float = 3.0

  def __post_init__(self):
    super().__post_init__()
    for name, low, most in (('decay', 'more than 0', 1), ('explore', 'at least 0', 1)):
      value = getattr(self, name)
      if not (0 < value or name == 'explore' and value == 0) or value > most:
        raise ValueError(f'`{name}` must be {low} and at most {most}. Found {value}.')
    if not 0 < self.prior_visits < float('inf'):
      raise ValueError(
          f'`prior_visits` must be positive and finite. Found {self.prior_visits}.'
      )

  def initialize(self, sizes: Sequence[int]) -> post_processing.Energies:
    return post_processing.Energies.none(sizes)

  def next(
      self, memory: post_processing.Energies, release: post_processing.Release
  ) -> post_processing.Energies:
    return memory.after(release, self.decay)

  def select(
      self, memory: post_processing.Energies, sizes: Sequence[int], seed: tf.Tensor
  ) -> tf.Tensor:
    """Coordinates int32[k], ascending, of the next round.

    Args:
      memory: Of all releases so far.
      sizes: Elements of each of the model's tensors.
      seed: int64[2].
    """
    dim = sum(sizes)
    num = self.num_kept(dim)
    num_exploring = round(self.explore * num)
    chance = tf.random.stateless_uniform([2, dim], seed, minval=1e-30)
    # The largest of log(weight) + Gumbel noise are a sample without replacement in
    # proportion to the weights.
    keys = tf.repeat(self._log_weights(memory, sizes), sizes) - tf.math.log(
        -tf.math.log(chance[0])
    )
    estimate = memory.estimate(sizes, self.prior_visits) * (1 + _JITTER * chance[1])
    seen = tf.reduce_any(memory.visits > 0)
    exploited = tf.math.top_k(tf.where(seen, estimate, keys), num - num_exploring).indices
    keys = tf.tensor_scatter_nd_update(
        keys, exploited[:, tf.newaxis], tf.fill(tf.shape(exploited), -float('inf'))
    )
    explored = tf.math.top_k(keys, num_exploring).indices
    return tf.sort(tf.concat([exploited, explored], 0))

  def _log_weights(self, memory, sizes):
    """The logarithm of a coordinate's weight in the exploration, float32[len(sizes)]."""
    totals, visits = memory.of_tensors(sizes)
    counts = tf.constant(sizes, tf.float32)
    energies = counts * tf.maximum(tf.math.divide_no_nan(totals, visits), 0.0)
    share = tf.math.divide_no_nan(energies, tf.reduce_sum(energies))
    equal = 1 / len(sizes)
    return tf.math.log(_EQUAL_SHARE * equal + (1 - _EQUAL_SHARE) * share) - tf.math.log(counts)
