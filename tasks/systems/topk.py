"""The top k of an update on public data: its options and its sparsifier."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import fedsmp_tff
from tasks import errors
from tasks.cli import options
from tasks.datasets import task as task_lib


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of top-k."""

  public_clients: int = options.option(
      0,
      'Number of pseudo-clients: they share the public examples and train as clients do, and the'
      ' mask selects the top k of their mean update. 0: one training on all public examples, as in'
      ' the paper.',
      at_least=0,
  )
  released_weight: Optional[float] = options.option(
      None,
      'Weight in [0, 1] of past releases in the ranking of coordinates; the rest is the public'
      ' update, smoothed over the rows and columns of each layer (default: off, the public update'
      ' alone, unsmoothed, as in the paper).',
      at_least=0, at_most=1,
  )


def sparsifier(settings: Any, data: task_lib.TaskData) -> fedsmp_tff.Sparsifier:
  """Returns the sparsifier of (a run's settings, its data)."""
  own, num_examples = settings.system_options, len(data.public[0])
  if own.public_clients > num_examples:
    raise errors.InputError(
        f'--public_clients={own.public_clients} exceeds the {num_examples} public examples. Use'
        f' --public_clients={num_examples} or less, or more --public_examples.'
    )
  public = dict(
      public_examples=data.public, public_clients=own.public_clients or None,
      mask_rounds=settings.mask_rounds,
  )
  if own.released_weight is None:
    return fedsmp_tff.TopK(settings.p, **public)
  return fedsmp_tff.HybridTopK(settings.p, released_weight=own.released_weight, **public)
