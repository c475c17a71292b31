"""Top k by past releases: without public data (ReleasedTopK), or beside them (HybridTopK)."""

import dataclasses

import tensorflow as tf

from fedsmp_tff import flattening
from fedsmp_tff import sparsifiers
from fedsmp_tff.post_processing import energies as energies_lib

# The least part of the exploration that all tensors share equally.
_EQUAL_SHARE = 0.5
# Coordinates that no round kept may have one estimate: chance orders them.
_JITTER = 0.01


@dataclasses.dataclass(frozen=True)
class ReleasedTopK(energies_lib.RemembersEnergies, sparsifiers.Kept):
  """The k coordinates of the largest energies by past releases; not scaled.

  A share of the k explores: it is drawn at random, half of it from all tensors of the
  model equally, half in proportion to their energies; the others are the largest of
  `energies.Energies.estimate`. In the first round all of the k explore.

  It needs nothing but the aggregator's own state, so that it works in any process that
  takes an aggregator. Compare TP-TopK (arXiv 2606.04375), for record-level privacy: it chooses
  one support after a warm-up, and keeps it.

  Privacy: the coordinates are a function of past releases and of public randomness, so
  they are public before the round begins (`fed_smp.FedSmpRound`).

  Attributes:
    decay: Decay per round of the weight of past releases, in (0, 1].
    explore: The share of k that explores, in [0, 1].
  """

  decay: float = 0.95
  explore: float = 0.1

  def __post_init__(self):
    super().__post_init__()
    self.check_decay()
    if not 0 <= self.explore <= 1:
      raise ValueError(f'`explore` must be from 0 to 1. Found {self.explore}.')

  def choose(self, known: sparsifiers.Known) -> tf.Tensor:
    sizes = flattening.sizes(known.shapes)
    num = self.num_kept(sum(sizes))
    num_exploring = round(self.explore * num)
    chance = tf.random.stateless_uniform([2, sum(sizes)], known.seed, minval=1e-30)
    estimate = known.memory.estimate(known.shapes)
    equal = tf.repeat(tf.constant([1 / (size * len(sizes)) for size in sizes]), sizes)
    weights = _EQUAL_SHARE * equal + (1 - _EQUAL_SHARE) * _shares(estimate)
    # The largest of log(weight) + Gumbel noise are a sample without replacement in
    # proportion to the weights.
    keys = tf.math.log(weights) - tf.math.log(-tf.math.log(chance[0]))
    seen = tf.reduce_any(known.memory.visits > 0)
    ranks = tf.where(seen, estimate * (1 + _JITTER * chance[1]), keys)
    exploited = tf.math.top_k(ranks, num - num_exploring).indices
    keys = tf.tensor_scatter_nd_update(
        keys, exploited[:, tf.newaxis], tf.fill(tf.shape(exploited), -float('inf'))
    )
    explored = tf.math.top_k(keys, num_exploring).indices
    return tf.sort(tf.concat([exploited, explored], 0))


@dataclasses.dataclass(frozen=True, eq=False)
class HybridTopK(energies_lib.RemembersEnergies, sparsifiers.TopK):
  """The top k by an update on public data and by past releases together; not scaled.

  A coordinate's score is the weighted mean of its share of the public update's energy and
  its share of the energy that is estimated from releases. Public data rank coordinates that
  were never kept; releases reflect the clients' data, from which public data may differ. The
  public update is one sample of one path of training: its energies are smoothed by the product
  of their rows and columns, as those of releases are (`energies.Energies.estimate`).

  Privacy: a function of past releases and of public data (`fed_smp.FedSmpRound`).

  Attributes:
    released_weight: Weight of the releases in the score, in [0, 1].
    smoothing: Weight of the product of rows and columns in the public energies, in [0, 1].
    decay: See `ReleasedTopK`.
  """

  released_weight: float = 0.5
  smoothing: float = 0.75
  decay: float = 0.95

  def __post_init__(self):
    super().__post_init__()
    self.check_decay()
    for name in ('released_weight', 'smoothing'):
      if not 0 <= getattr(self, name) <= 1:
        raise ValueError(f'`{name}` must be from 0 to 1. Found {getattr(self, name)}.')

  def choose(self, known: sparsifiers.Known) -> tf.Tensor:
    public = _shares(tf.cast(known.public_update(), tf.float32) ** 2)
    public += self.smoothing * (energies_lib.rank_one(public, known.shapes) - public)
    released = _shares(known.memory.estimate(known.shapes))
    # `select` ranks by magnitude.
    return self.select(public + self.released_weight * (released - public))


def _shares(energies: tf.Tensor) -> tf.Tensor:
  """Each one's share in the sum of those that are positive and finite."""
  energies = tf.where(tf.math.is_finite(energies), tf.maximum(energies, 0.0), 0.0)
  return tf.math.divide_no_nan(energies, tf.reduce_sum(energies))
