"""Fixed point: real values as integers whose sum over clients is exact."""

import dataclasses

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_MIN_BITS = 8
# float64, in which values are rounded, has 53 bits.
_MAX_BITS = 50


def default_bits(num_summands: int) -> int:
  """Returns the most bits a client value may have for the sum to fit in int32."""
  return 31 - (num_summands - 1).bit_length()


@dataclasses.dataclass(frozen=True)
class FixedPoint:
  """Fixed point with `bits` bits a client value, for a sum over clients.

  A value x in [-B, B] becomes the integer round(x / step) + L in [0, 2 L], with
  L = 2^(bits - 1) - 1 and step = B / L; values outside are put to -B or B. A sum of at most `num_summands` values stays below 2^31 (32 bits on the
  wire) or 2^63 (64): it can neither overflow nor wrap, whatever clients send.

  Rounding moves a value by at most step / 2, so a decoded mean over clients is
  within step / 2 of the mean of the values (those in range; beside the error of
  float64, of relative size 2^-52).

  >>> default_bits(num_summands=100)
  24
  >>> encoding = FixedPoint(bits=24, value_bound=1.0, num_summands=100)
  >>> encoding.wire_bits, encoding.levels
  (32, 8388607)
  >>> 100 * encoding.max_input < 2**31
  True

  Attributes:
    bits: Bits of one client's value.
    value_bound: B, the largest magnitude that is represented.
    num_summands: The most clients that a sum adds: the seats of a round.

  Raises:
    ValueError: If `bits` or `value_bound` is out of its range.
  """

  bits: int
  value_bound: float
  num_summands: int

  def __post_init__(self):
    most = (_INT64_MAX // self.num_summands).bit_length() - 1
    most = min(most, _MAX_BITS)
    if not isinstance(self.bits, int) or not _MIN_BITS <= self.bits <= most:
      raise ValueError(
          f'`bits` must be an integer from {_MIN_BITS} to {most} for sums over'
          f' {self.num_summands} seats. Found {self.bits}; lower `bits` or `seats`.'
      )
    if not 0 < self.value_bound < float('inf'):
      raise ValueError(
          f'`value_bound` must be positive and finite. Found {self.value_bound}.'
      )

  @property
  def levels(self) -> int:
    """L: integers from -L to L stand for values from -B to B."""
    return 2 ** (self.bits - 1) - 1

  @property
  def step(self) -> float:
    """The distance between neighbouring representable values."""
    return self.value_bound / self.levels

  @property
  def max_input(self) -> int:
    """The largest integer that a client sends; the smallest is 0."""
    return 2 * self.levels

  @property
  def wire_bits(self) -> int:
    """Bits of an integer that a client sends: 32 where the whole sum fits, else 64."""
    return 32 if self.num_summands * self.max_input <= _INT32_MAX else 64
