"""Fed-SMP with random masks, and FedAvg with the same masks."""

import fedsmp_tff
from tasks.systems import system


def _sparsifier(settings, data):
  del data
  return fedsmp_tff.RandK(settings.p, mask_rounds=settings.mask_rounds)


_MASK = 'random coordinates, the same for all clients'
SYSTEM = system.System('fedsmp_randk', 'Fed-SMP rand-k', _MASK, _sparsifier)
WITHOUT_PRIVACY = system.System('fedavg_randk', 'FedAvg rand-k', _MASK, _sparsifier, private=False)
