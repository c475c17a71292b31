"""What the server keeps between rounds, and what a round releases."""

from typing import Any, NamedTuple


class FedSmpState(NamedTuple):
  """Server state of the aggregation; all of it is public.

  Attributes:
    coordinates: int32[k], this round's kept coordinates, ascending (int32[0] for
      `Dense`, which keeps all).
    round_num: int32, rounds that ended.
    seed: int64[2], from which every round's public random choices derive.
    clipping_norm: float64, this round's C; infinite without clipping.
    factors: float32[k], with which clients multiply their values before the clip; float32[0]
      for none.
    guess: float32[k], which they subtract before that; float32[0] for none.
    memory: What `server_choices.ServerChoices` remembers of releases; not sent to clients.
  """

  coordinates: Any
  round_num: Any
  seed: Any
  clipping_norm: Any
  factors: Any
  guess: Any
  memory: Any

  def message(self) -> 'FedSmpState':
    """What of it clients need."""
    return self._replace(memory=())


class Release(NamedTuple):
  """What a round made public of its clients, noise included.

  Attributes:
    coordinates: int32[k], ascending; which of the d coordinates.
    values: float64[k], the mean of the clients' values there, over r.
    stddev: float64[k], the standard deviation of the noise in `values`: public, as C,
      sigma, r and the factors are. Zero without privacy.
  """

  coordinates: Any
  values: Any
  stddev: Any
