"""Fed-SMP with the top k of past releases: no public data."""

from tasks.systems import system


def _sparsifier(settings, data):
  del data
  import fedsmp_tff  # pylint: disable=g-import-not-at-top

  return fedsmp_tff.ReleasedTopK(settings.p, mask_rounds=settings.mask_rounds)


SYSTEM = system.System(
    'fedsmp_released',
    'Fed-SMP past releases',
    'the coordinates with the largest past releases, and some random ones; the same for all clients',
    _sparsifier,
)
