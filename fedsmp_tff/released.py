"""Top-k masks from past releases, without public data.

They estimate each coordinate's energy, the mean square of its values, at no cost in epsilon.
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any, NamedTuple

import tensorflow as tf

from fedsmp_tff import errors
from fedsmp_tff import flattening
from fedsmp_tff import sparsifiers
from fedsmp_tff import state as state_lib

_FITS = 3
_MIN_FACTOR = 1 / 50  # Minimum factor of a group of coordinates, whose low estimate may be noise.
_EQUAL_FRACTION = 0.5  # Fraction of the exploration that all tensors share equally.
_DECAY = 0.95  # Factor per round on the weight of past releases.
_JITTER = 0.01  # Orders coordinates with equal estimates, such as never-selected ones, at random.


@dataclasses.dataclass(frozen=True)
class ReleasedTopK(sparsifiers.SizedSparsifier):
  """Selects the k coordinates with the largest energy in past releases; values are not scaled.

  A fraction of the k coordinates is drawn at random, to explore. Half of the probability is spread
  equally over the tensors, and half follows the estimated energies. The other coordinates are those
  with the largest `Energies.estimate`. In the first round all k coordinates are random.

  `ReleasedTopK` needs only the aggregator's own state, so it works in any process that takes an
  aggregator. TP-TopK (arXiv 2606.04375), for record-level privacy, chooses one mask after a warm-up
  and keeps it.

  Attributes:
    random_fraction: Fraction of k that is drawn at random, in [0, 1].
  """

  random_fraction: float = 0.1

  def __post_init__(self):
    super().__post_init__()
    holds = 0 <= self.random_fraction <= 1
    errors.check_value(holds, 'random_fraction', 'from 0 to 1', self.random_fraction)

  def initial_memory(self, dim: int) -> 'Energies':
    return Energies.none(dim)

  def remember(self, memory: 'Energies', release: state_lib.Release) -> 'Energies':
    return memory.after(release)

  def choose(self, context: sparsifiers.PublicContext) -> tf.Tensor:
    sizes = flattening.sizes(context.shapes)
    num = self.num_kept(context.dim)
    num_exploring = round(self.random_fraction * num)
    chance = tf.random.stateless_uniform([2, context.dim], context.seed, minval=1e-30)
    estimate = context.memory.estimate(context.shapes)
    equal = tf.repeat(tf.constant([1 / (size * len(sizes)) for size in sizes]), sizes)
    weights = _EQUAL_FRACTION * equal + (1 - _EQUAL_FRACTION) * _fractions(estimate)
    # The largest of log(weight) + Gumbel noise are a weighted sample without replacement.
    keys = tf.math.log(weights) - tf.math.log(-tf.math.log(chance[0]))
    seen = tf.reduce_any(context.memory.visits > 0)
    ranks = tf.where(seen, estimate * (1 + _JITTER * chance[1]), keys)
    exploited = tf.math.top_k(ranks, num - num_exploring).indices
    keys = tf.tensor_scatter_nd_update(
        keys, exploited[:, tf.newaxis], tf.fill(tf.shape(exploited), -float('inf'))
    )
    explored = tf.math.top_k(keys, num_exploring).indices
    return tf.concat([exploited, explored], 0)


class Energies(NamedTuple):
  """Memory of each coordinate's energy, the mean square of its values without noise.

  Attributes:
    total: float32[d], decayed sum of the estimates from single releases.
    visits: float32[d], decayed number of releases with the coordinate.
    noise: float32, decayed sum of the noise's variance over all visits.
  """

  total: Any
  visits: Any
  noise: Any

  @classmethod
  def none(cls, dim: int) -> 'Energies':
    """Returns the memory before any release."""
    return cls(tf.zeros([dim]), tf.zeros([dim]), tf.constant(0.0))

  def after(self, release: state_lib.Release) -> 'Energies':
    """Returns the memory after one more release; older releases decay.

    The square of a released value minus the noise variance is an unbiased estimate of the squared
    value without noise; it may be negative.
    """
    squares = tf.cast(release.values**2 - release.stddev**2, tf.float32)
    where = release.coordinates[:, tf.newaxis]
    return Energies(
        tf.tensor_scatter_nd_add(_DECAY * self.total, where, squares),
        tf.tensor_scatter_nd_add(_DECAY * self.visits, where, tf.ones_like(squares)),
        _DECAY * self.noise + tf.cast(tf.reduce_sum(release.stddev**2), tf.float32),
    )

  def estimate(self, shapes: flattening.Shapes) -> tf.Tensor:
    """Returns the estimated energy of each coordinate, float32[d]; it may be negative.

    A coordinate's releases are mostly noise, and most coordinates were never selected. So each
    estimate is shrunk towards a product of a row factor and a column factor: energy in a layer's
    weights is close to such a product of inputs and outputs (Adafactor uses it too, arXiv
    1804.04235), and these factors are few. Empirical Bayes with the known noise sets the amount of
    shrinkage: little for clear data, complete for noise. Likewise, tensors' levels are shrunk to
    their mean, and factors to 1.

    Args:
      shapes: The shapes of the model's tensors, in order.
    """
    visits = tf.reduce_sum(self.visits)
    variance = tf.math.divide_no_nan(self.noise, visits)
    # Energy that releases could hide if they were noise alone.
    hidden = variance * tf.sqrt(tf.math.divide_no_nan(2.0, visits))
    mean = tf.maximum(tf.math.divide_no_nan(tf.reduce_sum(self.total), visits), hidden)
    # All further numbers are relative to the mean.
    fit = _Fit(tf.math.divide_no_nan(variance, mean))
    relative = tf.math.divide_no_nan(self.total, mean)
    sizes = flattening.sizes(shapes)
    prior = tf.concat(
        [
            fit.tensor(of_tensor, seen, shape)
            for of_tensor, seen, shape in zip(
                tf.split(relative, sizes), tf.split(self.visits, sizes), shapes
            )
        ],
        0,
    )
    return mean * fit.coordinates(relative, self.visits, prior)


class _Fit:
  """Estimates energies, relative to their mean, from releases with noise of known variance."""

  def __init__(self, variance: tf.Tensor):
    self._variance = variance

  def tensor(self, total: tf.Tensor, visits: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Returns the expected energy of each of a tensor's coordinates, [size]."""
    seen = tf.reduce_sum(visits)
    level = self._factor(tf.reduce_sum(total), seen, seen, 1.0)
    if len(shape) < 2:
      return tf.fill([math.prod(shape)], level)
    total, visits = (tf.reshape(part, [-1, shape[-1]]) for part in (total, visits))
    columns = tf.ones([shape[-1]])
    for _ in range(_FITS):
      rows = self._factors(total, visits, columns, level)
      columns = self._factors(tf.transpose(total), tf.transpose(visits), rows, level)
    return tf.reshape(level * rows[:, tf.newaxis] * columns, [-1])

  def _factors(self, total, visits, others, level):
    """Returns a factor for each row, of mean 1, given the factors of the columns."""
    expected = level * tf.linalg.matvec(visits, others)
    factors = self._factor(tf.reduce_sum(total, 1), expected, tf.reduce_sum(visits, 1), level)
    return factors / tf.reduce_mean(factors)

  def _factor(self, total, expected, visits, level):
    """Returns a group's energy over the expected energy, shrunk towards 1.

    The prior of a factor has a standard deviation equal to its mean. The error of its estimate
    comes from the noise and from differences between energies within the group.
    """
    # Given x, (x + noise)^2 has variance 2 v^2 + 4 v x^2; x^2 has variance 2 mean^2.
    v = self._variance
    variance = 2 * visits * v**2 + (4 * v + 2 * level) * expected
    weight = tf.math.divide_no_nan(expected**2, expected**2 + variance)
    exceeds = tf.math.divide_no_nan(total, expected) - 1
    return tf.maximum(1 + weight * exceeds, _MIN_FACTOR)

  def coordinates(self, total: tf.Tensor, visits: tf.Tensor, prior: tf.Tensor) -> tf.Tensor:
    """Returns each coordinate's estimate [d], for normal values of variance `prior`."""
    signal = visits * prior**2
    noise = self._variance * (self._variance + 2 * prior)
    weight = tf.math.divide_no_nan(signal, signal + noise)
    return prior + weight * (tf.math.divide_no_nan(total, visits) - prior)


def _fractions(energies: tf.Tensor) -> tf.Tensor:
  """Returns each energy's fraction of the sum of positive finite energies."""
  energies = tf.where(tf.math.is_finite(energies), tf.maximum(energies, 0.0), 0.0)
  return tf.math.divide_no_nan(energies, tf.reduce_sum(energies))
