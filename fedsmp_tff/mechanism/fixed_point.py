"""Real vectors as integers that a secure sum adds exactly, and back."""

import dataclasses

import tensorflow as tf

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_MIN_BITS = 8
# float64, in which values are rounded, has 53 bits.
_MAX_BITS = 50


def default_bits(clients_per_round: int) -> int:
  """The most bits a client value may have for the sum to fit in int32."""
  return 31 - (clients_per_round - 1).bit_length()


@dataclasses.dataclass(frozen=True)
class FixedPoint:
  """Fixed point with `bits` bits a client value, for a sum over clients.

  A value x in [-B, B] becomes the integer round(x / step) + L in [0, 2 L], with
  L = 2^(bits - 1) - 1 and step = B / L; values outside are put to -B or B and
  counted. A sum over at most `clients_per_round` clients stays below 2^31
  (int32) or 2^63 (int64): it can neither overflow nor wrap, whatever clients hold.

  Rounding moves a value by at most step / 2, so a decoded mean over clients is
  within step / 2 of the mean of the values (those in range; beside the error of
  float64, of relative size 2^-52).

  Attributes:
    bits: Bits of one client's value.
    value_bound: B, the largest magnitude that is represented.
    clients_per_round: The most clients that a sum adds.
  """

  bits: int
  value_bound: float
  clients_per_round: int

  def __post_init__(self):
    most = (_INT64_MAX // self.clients_per_round).bit_length() - 1
    most = min(most, _MAX_BITS)
    if not isinstance(self.bits, int) or not _MIN_BITS <= self.bits <= most:
      raise ValueError(
          f'`bits` must be an integer from {_MIN_BITS} to {most} for sums over'
          f' {self.clients_per_round} clients. Found {self.bits}; set `bits`, or'
          ' fewer `clients_per_round`.'
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
  def dtype(self) -> tf.DType:
    """int32 where a sum over all clients fits in it, else int64."""
    fits = self.clients_per_round * self.max_input <= _INT32_MAX
    return tf.int32 if fits else tf.int64

  def encode(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Integers [k] in [0, max_input], and how many values were out of range.

    Args:
      values: float64[k], finite.

    Returns:
      The integers, of type `dtype`, and an int64 scalar.
    """
    out_of_range = tf.abs(values) > self.value_bound
    inside = tf.clip_by_value(values, -self.value_bound, self.value_bound)
    steps = tf.round(inside * (self.levels / self.value_bound))
    integers = tf.cast(steps, self.dtype) + tf.constant(self.levels, self.dtype)
    return integers, tf.math.count_nonzero(out_of_range)

  def decode_sum(self, total: tf.Tensor, num_clients: tf.Tensor) -> tf.Tensor:
    """The sum of the values, float64[k], from the sum of their integers.

    Args:
      total: The sum of `encode`'s integers over clients, [k].
      num_clients: How many clients were added, an integer scalar.
    """
    offset = tf.cast(num_clients, self.dtype) * tf.constant(
        self.levels, self.dtype
    )
    return tf.cast(total - offset, tf.float64) * self.step
