"""DP-FedAvg and FedAvg: all coordinates."""

import fedsmp_tff
from tasks.systems import system


def _sparsifier(settings, data):
  del settings, data
  return fedsmp_tff.Dense()


SYSTEM = system.System('dp_fedavg', 'DP-FedAvg', 'all coordinates', _sparsifier, masked=False)
WITHOUT_PRIVACY = system.System(
    'fedavg', 'FedAvg', 'all coordinates', _sparsifier, private=False, masked=False
)
