"""Post-processing: what a server makes of past releases and public data, at no cost in epsilon.

The server chooses four things: the round's coordinates (`sparsifiers.Sparsifier`), factors and
a guess that shape clients' values before the clip (`Factors`, `Guess`), and the update that a
release becomes (`Filter`). All have one hook, `choose(known)`; what remembers releases is
also a `PostProcessing`. `FedSmpFactory` takes a list of them, at most one of each kind:

>>> import fedsmp_tff
>>> factory = fedsmp_tff.FedSmpFactory(
...     fedsmp_tff.RandK(0.1), fedsmp_tff.Mechanism(10, clipping_norm=1.0, noise_multiplier=1.0),
...     post_processing=[fedsmp_tff.Preconditioner(), fedsmp_tff.LowPass(decay=0.8)])
"""

import abc
from typing import Any

import tensorflow as tf

from fedsmp_tff import flattening
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import state as state_lib


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
  def initialize(self, shapes: flattening.Shapes) -> Any:
    """Returns the memory before any release.

    Args:
      shapes: Of the model's tensors.
    """

  @abc.abstractmethod
  def next(self, memory: Any, release: state_lib.Release) -> Any:
    """Returns the memory after one more valid release."""


class Factors(PostProcessing):
  """Chooses what clients multiply their values with before the clip."""

  @abc.abstractmethod
  def choose(self, known: sparsifiers.Known) -> tf.Tensor:
    """Returns positive factors float32[k] of `known.coordinates`."""


class Guess(PostProcessing):
  """Chooses what clients subtract from their values before the clip; the server adds it."""

  @abc.abstractmethod
  def choose(self, known: sparsifiers.Known) -> tf.Tensor:
    """Returns the guess float32[k] of the mean at `known.coordinates`."""


class Filter(PostProcessing):
  """Chooses the update that a release and those before it become.

  A filter knows which coordinates a round kept: on others nothing was released, which is
  something else than a zero. They neither move nor forget.

  Privacy: see `PostProcessing`; its outcome moves the weights, no more.
  """

  @abc.abstractmethod
  def choose(self, known: sparsifiers.Known) -> tf.Tensor:
    """Returns the update float64[k] at the coordinates of `known.release`.

    `known.memory` is what `next` returned for that release.
    """


def check_decay(decay: float) -> None:
  """Raises `ValueError` if `decay` is not in [0, 1)."""
  if not 0 <= decay < 1:
    raise ValueError(f'`decay` must be at least 0 and less than 1. Found {decay}.')
