"""Post-processing: what a server makes of past releases and public data, at no cost in epsilon."""

import abc
from collections.abc import Sequence
import math
from typing import Any, NamedTuple

import tensorflow as tf


class Release(NamedTuple):
  """What a round made public of its clients, noise included.

  Attributes:
    coordinates: int32[k], ascending; which of the d coordinates.
    values: float64[k], the mean of the clients' values there, over r.
    stddev: float64[k], the standard deviation of the noise in `values`: public, as C,
      sigma, r and the factors are. Zero without privacy.
  """

  coordinates: Any
  values: Any
  stddev: Any


class PostProcessing(abc.ABC):
  """Remembers what it needs of the releases so far, and nothing else.

  Why it costs nothing: a function of a differentially private output, of public data and
  of randomness of its own is as private as that output (post-processing; Dwork and Roth,
  2014, Proposition 2.1). Where its outcome goes back into the next round (which coordinates,
  what is subtracted and multiplied before the clip), the accounting covers it as well:
  composition is adaptive, so that a round's mechanism may depend on all that was released
  before it, and its sensitivity is C whatever was chosen, as the clip comes last.

  `initialize` and `next` are TensorFlow functions; `memory` is a structure of tensors of
  fixed shapes, part of the server's state and so of checkpoints, and public.
  """

  @abc.abstractmethod
  def initialize(self, sizes: Sequence[int]) -> Any:
    """The memory before any release.

    Args:
      sizes: Elements of each of the model's tensors, in order; they sum up to d.
    """

  @abc.abstractmethod
  def next(self, memory: Any, release: Release) -> Any:
    """The memory after one more release."""


class Energies(NamedTuple):
  """Memory of each coordinate's energy, the mean square of its values without noise.

  Attributes:
    total: float32[d], a decayed sum of what releases say of it.
    visits: float32[d], how many said something, decayed alike.
  """

  total: Any
  visits: Any

  @classmethod
  def none(cls, sizes: Sequence[int]) -> 'Energies':
    """Of no releases."""
    return cls(tf.zeros([sum(sizes)]), tf.zeros([sum(sizes)]))

  def after(self, release: Release, decay: float) -> 'Energies':
    """With one more release, the older ones multiplied by `decay`.

    A released value's square less the noise's variance is an unbiased estimate of the
    square of the value without noise; it may be negative.
    """
    said = tf.cast(release.values**2 - release.stddev**2, tf.float32)
    where = release.coordinates[:, tf.newaxis]
    return Energies(
        tf.tensor_scatter_nd_add(decay * self.total, where, said),
        tf.tensor_scatter_nd_add(decay * self.visits, where, tf.ones_like(said)),
    )

  def of_tensors(self, sizes: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Totals and visits, float32[len(sizes)] each, of the model's tensors."""
    return tuple(
        tf.stack([tf.reduce_sum(part) for part in tf.split(vector, sizes)])
        for vector in self
    )

  def estimate(self, sizes: Sequence[int], prior_visits: float) -> tf.Tensor:
    """The energy of each coordinate, float32[d]; it may be negative.

    One coordinate's releases are mostly noise, so that they are drawn towards the mean
    of its tensor: as if `prior_visits` more releases had said that mean. A coordinate
    that no round kept has its tensor's mean, and in a tensor that none did the mean of all.
    """
    totals, visits = self.of_tensors(sizes)
    overall = tf.math.divide_no_nan(tf.reduce_sum(totals), tf.reduce_sum(visits))
    means = tf.where(visits > 0, tf.math.divide_no_nan(totals, visits), overall)
    prior = tf.repeat(means, sizes)
    return (self.total + prior_visits * prior) / (self.visits + prior_visits)


def check_memory(decay: float, prior_visits: float) -> None:
  """Raises `ValueError` if what an option does with `Energies` is out of range."""
  if not 0 < decay <= 1:
    raise ValueError(f'`decay` must be more than 0 and at most 1. Found {decay}.')
  if not 0 < prior_visits < math.inf:
    raise ValueError(f'`prior_visits` must be positive and finite. Found {prior_visits}.')
