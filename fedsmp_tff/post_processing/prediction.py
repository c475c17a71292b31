"""Prediction: a public guess of the update, which clients need not send again."""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from fedsmp_tff import flattening
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import state as state_lib
from fedsmp_tff.post_processing import base


class _Means(NamedTuple):
  """Decayed sums over a coordinate's releases, float32[d] each."""

  total: Any
  visits: Any


@dataclasses.dataclass(frozen=True)
class Prediction(base.Guess):
  """Subtracts a guess from a client's k values before the clip and adds it to the mean.

  The guess is `share` of the mean of a coordinate's past releases, the older ones decayed.
  It helps where clients' updates are like those of the rounds before: what is
  left to clip is then shorter.

  Privacy: the guess is a function of past releases, and what is clipped to C is what
  remains, so that a round's sensitivity is C (`base.PostProcessing`). A client
  that holds no data still sends zero, not the guess's negative: one that joins in its place moves
  the sum by C, not by 2 C.

  Attributes:
    decay: What is left, a release of the same coordinate later, of the earlier ones; in
      [0, 1).
    share: Of the mean that is the guess, in [0, 1].
  """

  decay: float = 0.9
  share: float = 0.5

  def __post_init__(self):
    base.check_decay(self.decay)
    if not 0 <= self.share <= 1:
      raise ValueError(f'`share` must be from 0 to 1. Found {self.share}.')

  def initialize(self, shapes: flattening.Shapes) -> _Means:
    dim = flattening.dim(shapes)
    return _Means(tf.zeros([dim]), tf.zeros([dim]))

  def next(self, memory: _Means, release: state_lib.Release) -> _Means:
    values = tf.cast(release.values, tf.float32)
    where = release.coordinates[:, tf.newaxis]
    total, visits = (tf.gather(vector, release.coordinates) for vector in memory)
    return _Means(
        tf.tensor_scatter_nd_update(memory.total, where, self.decay * total + values),
        tf.tensor_scatter_nd_update(memory.visits, where, self.decay * visits + 1),
    )

  def choose(self, known: sparsifiers.Known) -> tf.Tensor:
    # Zero where no release is known.
    total, visits = (tf.gather(vector, known.coordinates) for vector in known.memory)
    return self.share * tf.math.divide_no_nan(total, visits)
