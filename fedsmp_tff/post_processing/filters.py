"""Filters: the update that the server makes of a release before it moves the weights."""

import dataclasses
from typing import Any

import tensorflow as tf

from fedsmp_tff import flattening
from fedsmp_tff import post_processing
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import state as state_lib
from fedsmp_tff.post_processing import base
from fedsmp_tff.post_processing import energies as energies_lib


@dataclasses.dataclass(frozen=True)
class LowPass(base.Filter):
  """A first-order low-pass filter of each coordinate (DOPPLER, arXiv 2408.13460).

  m <- decay m + (1 - decay) (x + x') / 2, with x' the coordinate's release before. The
  update is m divided by the value that a constant release of 1 would have given it, so that
  there is no bias towards zero in the beginning. Noise is independent from round to round and
  the signal changes slowly, so that low frequencies have a larger share of signal.

  >>> shapes, coordinates = [(2,)], tf.constant([1])
  >>> low_pass = LowPass(decay=0.5)
  >>> memory = low_pass.initialize(shapes)
  >>> for value in (1.0, 3.0):
  ...   release = state_lib.Release(coordinates, tf.constant([value]), stddev=0.1, valid=True)
  ...   memory = low_pass.next(memory, release)
  ...   known = sparsifiers.Known(shapes, memory=memory, coordinates=coordinates)
  ...   print(round(float(low_pass.choose(known)[0]), 3))
  1.0
  1.8

  Attributes:
    decay: Weight of the filter's previous value, in [0, 1).
  """

  decay: float = post_processing.FILTER_DECAY

  def __post_init__(self):
    base.check_decay(self.decay)

  def initialize(self, shapes: flattening.Shapes) -> Any:
    zeros = tf.zeros([flattening.dim(shapes)])
    return (zeros, zeros, zeros)

  def next(self, memory: Any, release: state_lib.Release) -> Any:
    mean, gain, before = (tf.gather(vector, release.coordinates) for vector in memory)
    values = tf.cast(release.values, tf.float32)
    first = tf.equal(gain, 0.0)  # `==` compares identities in TFF's graphs.
    share = (1 - self.decay) / 2
    both = tf.where(first, 0.0, share * before) + share * values
    return _updated(
        memory, release.coordinates,
        self.decay * mean + both,
        self.decay * gain + share * tf.where(first, 1.0, 2.0),
        values,
    )

  def choose(self, known: sparsifiers.Known) -> tf.Tensor:
    mean, gain, _ = (tf.gather(vector, known.coordinates) for vector in known.memory)
    return tf.cast(mean / gain, tf.float64)


@dataclasses.dataclass(frozen=True)
class Momentum(base.Filter):
  """Heavy-ball momentum of each coordinate over the rounds that kept it: v <- decay v + x.

  Attributes:
    decay: Weight of the previous velocity, in [0, 1).
  """

  decay: float = post_processing.FILTER_DECAY

  def __post_init__(self):
    base.check_decay(self.decay)

  def initialize(self, shapes: flattening.Shapes) -> Any:
    return (tf.zeros([flattening.dim(shapes)]),)

  def next(self, memory: Any, release: state_lib.Release) -> Any:
    (velocity,) = memory
    velocity = self.decay * tf.gather(velocity, release.coordinates)
    return _updated(
        memory, release.coordinates, velocity + tf.cast(release.values, tf.float32)
    )

  def choose(self, known: sparsifiers.Known) -> tf.Tensor:
    return tf.cast(tf.gather(known.memory[0], known.coordinates), tf.float64)


@dataclasses.dataclass(frozen=True)
class Shrinkage(energies_lib.RemembersEnergies, base.Filter):
  """Shrinks each value towards zero by its share of noise (Wiener's filter).

  x <- x e / (e + s^2), with e the coordinate's energy by all releases so far, this one
  included (`energies.Energies`), and s the noise's standard deviation.

  Attributes:
    decay: Decay per round of the weight of past releases, in (0, 1].
  """

  decay: float = post_processing.FILTER_DECAY

  def __post_init__(self):
    self.check_decay()

  def choose(self, known: sparsifiers.Known) -> tf.Tensor:
    release = known.release
    estimate = known.memory.estimate(known.shapes)
    energy = tf.cast(tf.gather(estimate, release.coordinates), tf.float64)
    energy = tf.maximum(energy, 0.0)
    return release.values * tf.math.divide_no_nan(energy, energy + release.stddev**2)


def _updated(memory, coordinates, *values):
  where = coordinates[:, tf.newaxis]
  return tuple(
      tf.tensor_scatter_nd_update(vector, where, new) for vector, new in zip(memory, values)
  )
