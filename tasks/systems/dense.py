"""DP-FedAvg and FedAvg: all coordinates; and the public-only baseline, without clients."""

import fedsmp_tff
from tasks.systems import system


def _sparsifier(settings, data):
  del settings, data
  return fedsmp_tff.Dense()


_COMMON = dict(mask='all coordinates', sparsifier=_sparsifier, masked=False)
SYSTEM = system.System('dp_fedavg', 'DP-FedAvg', **_COMMON)
WITHOUT_PRIVACY = system.System('fedavg', 'FedAvg', private=False, **_COMMON)
PUBLIC_ONLY = system.System(
    'public_only', 'public-only baseline', private=False, needs_public=True, federated=False,
    **_COMMON,
)
