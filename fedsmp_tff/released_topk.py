"""Top k by past releases: without public data (ReleasedTopK), or beside them (HybridTopK)."""

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
    post_processing.check_memory(self.decay, self.prior_visits)
    if not 0 <= self.explore <= 1:
      raise ValueError(f'`explore` must be from 0 to 1. Found {self.explore}.')

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


@dataclasses.dataclass(frozen=True, eq=False)
class HybridTopK(sparsifiers.TopK, post_processing.PostProcessing):
  """The top k by an update on public data and by past releases together; not scaled.

  A coordinate's score is its share of the public update's energy and its share of the
  energy that releases tell, weighted. Public data know a coordinate before it was ever kept, and
  releases know the clients' data where public ones are of another kind.

  Privacy: a function of past releases and of public data (`post_processing.PostProcessing`).

  Attributes:
    released_weight: Of the releases' share, in [0, 1].
    decay: See `ReleasedTopK`.
    prior_visits: See `ReleasedTopK`.
  """

  released_weight: float = 0.5
  decay: float = 0.95
  prior_visits: float = 3.0

  def __post_init__(self):
    super().__post_init__()
    if not 0 <= self.released_weight <= 1:
      raise ValueError(
          f'`released_weight` must be from 0 to 1. Found {self.released_weight}.'
      )
    post_processing.check_memory(self.decay, self.prior_visits)

  def initialize(self, sizes: Sequence[int]) -> post_processing.Energies:
    return post_processing.Energies.none(sizes)

  def next(
      self, memory: post_processing.Energies, release: post_processing.Release
  ) -> post_processing.Energies:
    return memory.after(release, self.decay)

  def select_by_both(
      self, public_update: tf.Tensor, memory: post_processing.Energies, sizes: Sequence[int]
  ) -> tf.Tensor:
    """Coordinates int32[k], ascending, of the next round.

    Args:
      public_update: [d], on public data from the round's weights.
      memory: Of all releases so far.
      sizes: Elements of each of the model's tensors.
    """
    public = _shares(tf.cast(public_update, tf.float32) ** 2)
    released = _shares(tf.maximum(memory.estimate(sizes, self.prior_visits), 0.0))
    # `select` ranks by magnitude.
    return self.select(
        (1 - self.released_weight) * public + self.released_weight * released
    )


def _shares(energies: tf.Tensor) -> tf.Tensor:
  energies = tf.where(tf.math.is_finite(energies), energies, tf.zeros_like(energies))
  return tf.math.divide_no_nan(energies, tf.reduce_sum(energies))
