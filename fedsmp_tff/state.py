"""The server's state between rounds, and the release of a round."""

from typing import Any, NamedTuple


class FedSmpState(NamedTuple):
  """Server state of the aggregation, public unless `build_fed_smp` has a `seed` (simulation).

  Attributes:
    round_num: int32, number of finished rounds.
    seed: int64[2], the seed of every round's public random choices.
    clipping_norm: float64, C of the round; infinite without clipping.
    coordinates: int32[k], the round's mask, ascending; int32[0] for `Dense`, which selects all.
    memory: The sparsifier's memory of past releases; not sent to clients.
  """

  round_num: Any
  seed: Any
  clipping_norm: Any
  coordinates: Any
  memory: Any

  def message(self) -> 'FedSmpState':
    """Returns the state without the memory, for clients."""
    return self._replace(memory=())


class Release(NamedTuple):
  """The public result of a round, noise included.

  Attributes:
    coordinates: int32[k], the selected coordinates, ascending.
    values: float64[k], mean client value per selected coordinate (sum / r); zeros if not `valid`.
    stddev: float64[k], standard deviation of the noise in `values`, public; zero without privacy.
    valid: bool, whether enough participants reported for a release.
  """

  coordinates: Any
  values: Any
  stddev: Any
  valid: Any
