"""Bytes that a round and a run move: up (k values a client) and down."""

import dataclasses

_WEIGHT_BYTES = 4
_COORDINATE_BYTES = 4
_SHAPING_BYTES = 4
# A round's masks could be sent as the seed and round number they derive from.
_SEED_BYTES = 20
_MEGABYTE = 10**6


@dataclasses.dataclass(frozen=True)
class Communication:
  """Traffic of one client and round, without what secure aggregation itself adds.

  >>> traffic = Communication(
  ...     dim=1_000_000, num_integers=50_000, num_coordinates=50_000, integer_bits=32)
  >>> traffic.uplink_bytes, traffic.downlink_bytes
  (200000, 4200000)
  >>> traffic.uplink_megabytes(rounds=180, clients_per_round=100, population=6000)
  0.6

  Attributes:
    dim: d, weights sent down.
    num_integers: Integers sent up: about k.
    num_coordinates: Coordinates sent down; 0 if they never change.
    integer_bits: Bits of an integer sent up: 32, 64, or fewer modulo 2^bits.
    num_shaping: Numbers sent down that shape the values before the clip: k factors, a guess
      of k values, or both.
    num_fixed: Weights sent down that no round changes, such as the map of whitened inputs.
  """

  dim: int
  num_integers: int
  num_coordinates: int
  integer_bits: int
  num_shaping: int = 0
  num_fixed: int = 0

  @property
  def uplink_bytes(self) -> int:
    """A client's k values in a round. Its counts (4 to 20 bytes) are left out."""
    return -(-self.num_integers * self.integer_bits // 8)

  @property
  def downlink_bytes(self) -> int:
    """The weights, the kept coordinates, factors and guess, to a client in a round."""
    return self._dense_bytes + self.num_coordinates * _COORDINATE_BYTES

  @property
  def downlink_bytes_with_seed(self) -> int:
    """As `downlink_bytes`, with the seed of a random mask instead of its list."""
    return self._dense_bytes + _SEED_BYTES

  @property
  def _dense_bytes(self) -> int:
    return (self.dim + self.num_fixed) * _WEIGHT_BYTES + self.num_shaping * _SHAPING_BYTES

  def uplink_megabytes(
      self, rounds: int, clients_per_round: int, population: int
  ) -> float:
    """MB (10^6 bytes) that a client sends over a run, on average.

    With 4 bytes a value this is 4 k T r / n / 10^6, the cost in the paper's
    Tables 1 to 3.

    Args:
      rounds: T.
      clients_per_round: r.
      population: n, the clients among which the work is spread.

    Returns:
      The average over clients; one that takes part in every round sends n/r times
      as much.
    """
    share = rounds * clients_per_round / population
    return self.uplink_bytes * share / _MEGABYTE
