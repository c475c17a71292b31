"""Fed-SMP with the top k of an update on public data, and FedAvg with the same masks."""

import dataclasses
from typing import Optional

from tasks import errors
from tasks.cli import options
from tasks.systems import system


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of top-k."""

  public_clients: int = options.option(
      0,
      'Number of pseudo-clients: the public examples are split among them, they train as clients do,'
      ' and the mask selects the top k of their mean update. 0: one training on all public examples,'
      ' as in the paper.',
      group='Public data', at_least=0,
  )
  released_weight: Optional[float] = options.option(
      None,
      'Weight in [0, 1] of past releases in the ranking of coordinates; the rest is the public'
      ' update, smoothed over the rows and columns of each layer (default: off, the public update of'
      ' each coordinate, as in the paper).',
      group='Public data', at_least=0, at_most=1,
  )


def _sparsifier(settings, data):
  import fedsmp_tff  # pylint: disable=g-import-not-at-top

  num, num_examples = settings.system_options.public_clients, len(data.public[0])
  if num > num_examples:
    raise errors.InputError(
        f'--public_clients={num} exceeds the {num_examples} public examples. Use --public_clients='
        f'{num_examples} or less, or more --public_examples.'
    )
  public = dict(
      public_examples=data.public, public_clients=num or None, mask_rounds=settings.mask_rounds
  )
  weight = settings.system_options.released_weight
  if weight is None:
    return fedsmp_tff.TopK(settings.p, **public)
  return fedsmp_tff.HybridTopK(settings.p, released_weight=weight, **public)


_MASK = 'top coordinates of an update on the public examples, the same for all clients'
SYSTEM = system.System(
    'fedsmp_topk', 'Fed-SMP top-k', _MASK, _sparsifier, needs_public=True, options=Options
)
WITHOUT_PRIVACY = system.System(
    'fedavg_topk', 'FedAvg top-k', _MASK, _sparsifier, private=False, needs_public=True,
    options=Options,
)
