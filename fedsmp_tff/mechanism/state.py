"""The server's state between rounds, and the release of a round."""

from typing import Any, NamedTuple


class FedSmpState(NamedTuple):
  """Server state of the aggregation; all of it is public.

  Attributes:
    round_num: int32, number of rounds that ended.
    seed: int64[2], from which every round's public random choices derive.
    clipping_norm: float64, this round's C; infinite without clipping.
    coordinates: int32[k], the round's coordinates, ascending; int32[0] if all are kept (`Dense`).
    memory: What the sparsifier remembers of past releases; not sent to clients.
  """

  round_num: Any
  seed: Any
  clipping_norm: Any
  coordinates: Any
  memory: Any

  def message(self) -> 'FedSmpState':
    """Returns what clients need of it: all but the memory."""
    return self._replace(memory=())


class Release(NamedTuple):
  """The public result of a round, noise included.

  Attributes:
    coordinates: int32[k], ascending; the selected coordinates.
    values: float64[k], mean client value at each of them (sum / r); zeros if not `valid`.
    stddev: float64[k], the standard deviation of the noise in `values`: public, as C, sigma and
      r are. Zero without privacy.
    valid: bool, whether the round was released: whether enough participants reported.
  """

  coordinates: Any
  values: Any
  stddev: Any
  valid: Any
