"""DP-FedAvg and FedAvg: all coordinates."""

from tasks.systems import system


def _sparsifier(settings, data):
  del settings, data
  import fedsmp_tff  # pylint: disable=g-import-not-at-top

  return fedsmp_tff.Dense()


SYSTEM = system.System('dp_fedavg', 'DP-FedAvg', 'all coordinates', _sparsifier, masked=False)
WITHOUT_PRIVACY = system.System(
    'fedavg', 'FedAvg', 'all coordinates', _sparsifier, private=False, masked=False
)
