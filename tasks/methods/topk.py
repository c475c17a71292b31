"""The top k of an update on public data: its options and its sparsifier."""

from __future__ import annotations

import dataclasses
from typing import Any

import fedsmp_tff
from tasks import errors
from tasks.cli import options
from tasks.datasets import task as task_lib


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of top-k."""

  public_clients: int = options.option(
      0,
      'Number of pseudo-clients. They divide the public examples among them and train as clients'
      ' do, and the mask selects the top k of their mean update. With 0 there is one training on'
      ' all public examples, as in the paper.',
      at_least=0,
  )


def sparsifier(settings: Any, data: task_lib.TaskData) -> fedsmp_tff.Sparsifier:
  """Returns the sparsifier of (a run's settings, its data)."""
  own, num_examples = settings.method_options, len(data.public[0])
  if own.public_clients > num_examples:
    raise errors.InputError(
        f'--public_clients={own.public_clients} exceeds the {num_examples} public examples. Use'
        f' --public_clients={num_examples} or less, or more --public_examples.'
    )
  return fedsmp_tff.TopK(
      settings.p, public_examples=data.public, public_clients=own.public_clients or None,
      mask_rounds=settings.mask_rounds,
  )
