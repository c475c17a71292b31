"""What the server keeps between rounds, and what a round releases."""

from typing import Any, NamedTuple


class Choice(NamedTuple):
  """What the server chose for a round, from past releases, public data and chance.

  Attributes:
    coordinates: int32[k], the round's kept coordinates, ascending (int32[0] for
      `Dense`, which keeps all).
    factors: float32[k], with which clients multiply their values before the clip; float32[0]
      for none.
    guess: float32[k], which they subtract before that; float32[0] for none.
  """

  coordinates: Any
  factors: Any
  guess: Any

  @property
  def has_factors(self) -> bool:
    return bool(self.factors.shape[0])

  @property
  def has_guess(self) -> bool:
    return bool(self.guess.shape[0])


class FedSmpState(NamedTuple):
  """Server state of the aggregation; all of it is public.

  `MaskedPrivateSum` sets the round's number and C, `ServerChoices` the choice and the memory.

  Attributes:
    round_num: int32, rounds that ended.
    seed: int64[2], from which every round's public random choices derive.
    clipping_norm: float64, this round's C; infinite without clipping.
    choice: The round's coordinates, factors and guess.
    memory: What `ServerChoices` remembers of releases; not sent to clients.
  """

  round_num: Any
  seed: Any
  clipping_norm: Any
  choice: Choice
  memory: Any

  def message(self) -> 'FedSmpState':
    """Returns what clients need of it: all but the memory."""
    return self._replace(memory=())


class Release(NamedTuple):
  """What a round made public of its clients, noise included.

  Attributes:
    coordinates: int32[k], ascending; which of the d coordinates.
    values: float64[k], the mean of the clients' values there, over r; zeros if not `valid`.
    stddev: float64[k], the standard deviation of the noise in `values`: public, as C,
      sigma, r and the factors are. Zero without privacy.
    valid: bool, whether the round was released: whether enough participants reported.
  """

  coordinates: Any
  values: Any
  stddev: Any
  valid: Any
