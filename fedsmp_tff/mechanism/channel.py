"""Noise in real arithmetic: Gaussian noise, then fixed point, for an ordinary secure sum."""

import dataclasses

import tensorflow as tf

from fedsmp_tff.mechanism import fixed_point as fixed_point_lib
from fedsmp_tff.mechanism import noise

# Standard deviations of a noise share inside the encoded range: one share leaves
# it with probability 1.3e-15, so even 10^6 values of 10^5 clients rarely do.
_NOISE_TAIL = 8.0


@dataclasses.dataclass(frozen=True)
class Reals:
  """Vectors plus Gaussian noise as integers, and their sums back; see `lattice.Lattice`.

  Attributes:
    num_values: Length of a vector.
    fixed_point: Of a client's noisy values.
    share_stddev: Of one client's noise; 0: none.
  """

  num_values: int
  fixed_point: fixed_point_lib.FixedPoint
  share_stddev: float = 0.0

  @classmethod
  def of_unit_vectors(
      cls,
      num_values: int,
      noise_multiplier: float,
      seats: int,
      min_reporting: int,
      bits: int | None,
  ) -> 'Reals':
    """For vectors of norm at most 1 and a sum's noise of standard deviation `noise_multiplier`.

    Args:
      num_values: Length of a vector.
      noise_multiplier: Standard deviation of a released sum's noise, at least.
      seats: The most vectors that are added.
      min_reporting: The fewest, in a sum that is released.
      bits: Of a client's integers; None: the most for a sum in int32.
    """
    stddev = noise.share_stddev(noise_multiplier, min_reporting)
    bound = 1 + _NOISE_TAIL * stddev
    return cls(num_values, fixed_point(bits, bound, seats), stddev)

  @property
  def num_integers(self) -> int:
    return self.num_values

  @property
  def modulus(self) -> None:
    """Sums don't wrap around."""

  @property
  def max_input(self) -> int:
    return self.fixed_point.max_input

  @property
  def bits(self) -> int:
    return self.fixed_point.bits

  @property
  def step(self) -> float:
    return self.fixed_point.step

  @property
  def value_bound(self) -> float:
    """The largest value of a client; what is beyond is put there, and counted."""
    return self.fixed_point.value_bound

  @property
  def dtype(self) -> tf.DType:
    return self.fixed_point.dtype

  def encode(
      self, values: tf.Tensor, seed: tf.Tensor, public_seed: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """A client's integers, and how many values were out of range.

    Args:
      values: float64[num_values], finite.
      seed: int64[2], of this client and round alone.
      public_seed: Unused here: nothing is rotated.
    """
    del public_seed
    if self.share_stddev:
      values += noise.gaussian_share(self.num_values, self.share_stddev, seed)
    return self.fixed_point.encode(values)

  def decode_sum(
      self, total: tf.Tensor, num_clients: tf.Tensor, public_seed: tf.Tensor
  ) -> tf.Tensor:
    """The sum of the noisy values, float64[num_values]; see `fixed_point_lib.FixedPoint`."""
    del public_seed
    return self.fixed_point.decode_sum(total, num_clients)


def fixed_point(
    bits: int | None, value_bound: float, seats: int
) -> fixed_point_lib.FixedPoint:
  """Fixed point with as many bits as let a sum over `seats` fit in int32, or with `bits`."""
  bits = fixed_point_lib.default_bits(seats) if bits is None else bits
  return fixed_point_lib.FixedPoint(bits, value_bound, seats)
