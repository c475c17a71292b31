"""Fed-SMP with the top k of past releases: no public data."""

import fedsmp_tff
from tasks.systems import system


def _sparsifier(settings, data):
  del data
  return fedsmp_tff.ReleasedTopK(settings.p, mask_rounds=settings.mask_rounds)


SYSTEM = system.System(
    'fedsmp_released', 'Fed-SMP past releases',
    'largest past releases and random coordinates, the same for all clients', _sparsifier,
)
