"""Post-processing: what a server makes of past releases and public data, at no cost in epsilon."""

import abc
from typing import Any

from fedsmp_tff import flattening
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
    """The memory before any release.

    Args:
      shapes: Of the model's tensors.
    """

  @abc.abstractmethod
  def next(self, memory: Any, release: state_lib.Release) -> Any:
    """The memory after one more release."""


def check_decay(decay: float) -> None:
  """Raises `ValueError` if `decay` is not in [0, 1)."""
  if not 0 <= decay < 1:
    raise ValueError(f'`decay` must be at least 0 and less than 1. Found {decay}.')
