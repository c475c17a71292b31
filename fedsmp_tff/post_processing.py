"""Post-processing: what a server makes of past releases and public data, at no cost in epsilon."""

import abc
from collections.abc import Sequence
import math
from typing import Any, NamedTuple

# The shapes of a model's tensors, in order; they have d elements in all.
Shapes = Sequence[Sequence[int]]


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
  def initialize(self, shapes: Shapes) -> Any:
    """The memory before any release.

    Args:
      shapes: Of the model's tensors.
    """

  @abc.abstractmethod
  def next(self, memory: Any, release: Release) -> Any:
    """The memory after one more release."""


def sizes(shapes: Shapes) -> list[int]:
  """Elements of each of the model's tensors; they sum up to d."""
  return list(map(math.prod, shapes))


def dim(shapes: Shapes) -> int:
  """d, the number of the model's coordinates."""
  return sum(sizes(shapes))


def check_decay(decay: float) -> None:
  """Raises `ValueError` if `decay` is not in [0, 1)."""
  if not 0 <= decay < 1:
    raise ValueError(f'`decay` must be at least 0 and less than 1. Found {decay}.')
