"""Estimates of each coordinate's energy, the mean square of its values, from past releases."""

from collections.abc import Sequence
import math
from typing import Any, NamedTuple

import tensorflow as tf

from fedsmp_tff import flattening
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import state as state_lib

_FITS = 3
# No group of coordinates is given up for what may be noise alone.
_LEAST = 1 / 50


class Energies(NamedTuple):
  """Memory of each coordinate's energy, the mean square of its values without noise.

  Attributes:
    total: float32[d], the decayed sum of the estimates from single releases.
    visits: float32[d], the number of releases that kept the coordinate, decayed likewise.
    noise: float32, the sum over all visits of the noise's variance, decayed likewise.
  """

  total: Any
  visits: Any
  noise: Any

  @classmethod
  def none(cls, dim: int) -> 'Energies':
    """Returns the memory before any release."""
    return cls(tf.zeros([dim]), tf.zeros([dim]), tf.constant(0.0))

  def after(self, release: state_lib.Release, decay: float) -> 'Energies':
    """Returns the memory with one more release, the older ones multiplied by `decay`.

    A released value's square less the noise's variance is an unbiased estimate of the
    square of the value without noise; it may be negative.
    """
    squares = tf.cast(release.values**2 - release.stddev**2, tf.float32)
    where = release.coordinates[:, tf.newaxis]
    return Energies(
        tf.tensor_scatter_nd_add(decay * self.total, where, squares),
        tf.tensor_scatter_nd_add(decay * self.visits, where, tf.ones_like(squares)),
        decay * self.noise + tf.cast(tf.reduce_sum(release.stddev**2), tf.float32),
    )

  def estimate(self, shapes: flattening.Shapes) -> tf.Tensor:
    """The energy of each coordinate, float32[d]; it may be negative.

    One coordinate's releases are mostly noise, and most coordinates were never kept. So
    each estimate is shrunk towards a product of one factor for its row and one for its column:
    in a layer's weights energy is close to such a product of inputs and outputs (Adafactor
    uses it too, arXiv 1804.04235), and there are few of these factors. Empirical Bayes
    with the known noise sets the amount of shrinkage: little where the data are clear, all the
    way where they are not. Likewise, tensors' levels are shrunk to their mean, and factors to 1.

    Args:
      shapes: The shapes of the model's tensors, in order.
    """
    visits = tf.reduce_sum(self.visits)
    variance = tf.math.divide_no_nan(self.noise, visits)
    # Where all is noise, as much as it could hide.
    hidden = variance * tf.sqrt(tf.math.divide_no_nan(2.0, visits))
    mean = tf.maximum(tf.math.divide_no_nan(tf.reduce_sum(self.total), visits), hidden)
    # All further numbers are relative to the mean of all.
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
  """Estimates of energies relative to their mean, from what noise of a variance has blurred."""

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
    """A factor for each row, of mean 1, given those of the columns."""
    expected = level * tf.linalg.matvec(visits, others)
    factors = self._factor(
        tf.reduce_sum(total, 1), expected, tf.reduce_sum(visits, 1), level
    )
    return factors / tf.reduce_mean(factors)

  def _factor(self, total, expected, visits, level):
    """Returns a group's energy relative to the expected one, shrunk towards 1.

    The prior of a factor has a standard deviation equal to its mean. The error of its
    estimate comes from the noise and from differences between energies within the group.
    """
    # The variance of (x + noise)^2 is 2 v^2 + 4 v x^2, that of x^2 about its mean 2 mean^2.
    v = self._variance
    variance = 2 * visits * v**2 + (4 * v + 2 * level) * expected
    weight = tf.math.divide_no_nan(expected**2, expected**2 + variance)
    exceeds = tf.math.divide_no_nan(total, expected) - 1
    return tf.maximum(1 + weight * exceeds, _LEAST)

  def coordinates(
      self, total: tf.Tensor, visits: tf.Tensor, prior: tf.Tensor
  ) -> tf.Tensor:
    """Each coordinate's estimate [d], for normal values of variance `prior`."""
    signal = visits * prior**2
    weight = tf.math.divide_no_nan(
        signal, signal + self._variance * (self._variance + 2 * prior)
    )
    return prior + weight * (tf.math.divide_no_nan(total, visits) - prior)


class RemembersEnergies(sparsifiers.Sparsifier):
  """A sparsifier that remembers `Energies`, in which `decay` lowers the weight of older releases."""

  decay: float

  def check_decay(self) -> None:
    """Raises `ValueError` if `decay` is out of its range."""
    if not 0 < self.decay <= 1:
      raise ValueError(f'`decay` must be more than 0 and at most 1. Found {self.decay}.')

  def initial_memory(self, dim: int) -> Energies:
    return Energies.none(dim)

  def remember(self, memory: Energies, release: state_lib.Release) -> Energies:
    return memory.after(release, self.decay)


def rank_one(energies: tf.Tensor, shapes: flattening.Shapes) -> tf.Tensor:
  """Each tensor's energies as the product of its row sums and its column sums, [d].

  The last axis is the columns'; a vector stays as it is.
  """
  parts = []
  for part, shape in zip(tf.split(energies, flattening.sizes(shapes)), shapes):
    if len(shape) >= 2:
      part = tf.reshape(part, [-1, shape[-1]])
      rows, columns = tf.reduce_sum(part, 1), tf.reduce_sum(part, 0)
      part = tf.reshape(
          tf.math.divide_no_nan(rows, tf.reduce_sum(rows))[:, tf.newaxis] * columns, [-1]
      )
    parts.append(part)
  return tf.concat(parts, 0)
