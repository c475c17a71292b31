"""Random coordinates: the options of rand-k and its sparsifier."""

from __future__ import annotations

import dataclasses
from typing import Any

import fedsmp_tff
from tasks.cli import options
from tasks.datasets import task as task_lib


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of rand-k."""

  unbiased: bool = options.option(
      True,
      "Multiply a client's masked values by d/k before the clip, as in Algorithm 1."
      ' --unbiased=false leaves them as they are, as in Definition 6.',
  )


def sparsifier(settings: Any, data: task_lib.TaskData) -> fedsmp_tff.Sparsifier:
  """Returns the sparsifier of (a run's settings, its data)."""
  del data
  return fedsmp_tff.RandK(
      settings.p, unbiased=settings.method_options.unbiased, mask_rounds=settings.mask_rounds
  )
