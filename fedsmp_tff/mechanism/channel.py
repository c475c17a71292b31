"""Channels: how a client's vector becomes noisy integers, and their sum a vector again."""

import abc
import collections
from collections.abc import Sequence
import dataclasses

import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff.mechanism import fixed_point
from fedsmp_tff.mechanism import noise_shares

# What a client sends: `values`, integers [num_integers], and `participants`, 1.
Report = collections.OrderedDict


class Channel(abc.ABC):
  """Adds a client's noise share, encodes, sums securely, decodes.

  `MaskedPrivateSum` gives it the vector that the guarantee is about: of norm at most 1, in
  units of C (as it is without clipping). To use another channel, pass a function that makes
  it to `FedSmpFactory` as `make_channel`. `PrivacySpec` accounts for `GaussianChannel` and
  `LatticeChannel` alone; whoever writes another channel must prove its guarantee.

  Attributes:
    num_values: Length of a client's vector.
    num_integers: Number of integers that a client sends.
    bits: Bits of one client's value.
    wire_bits: Bits that an integer takes on the wire.
    step: The distance between neighbouring values that are represented.
    value_bound: The largest magnitude of a value that is represented.
    dtype: The type of the integers.
  """

  num_values: int
  num_integers: int
  bits: int
  wire_bits: int
  step: float
  value_bound: float
  dtype: tf.DType

  @abc.abstractmethod
  def encode(
      self, values: tf.Tensor, seed: tf.Tensor, public_seed: tf.Tensor
  ) -> tf.Tensor:
    """Adds a client's share of the noise and encodes.

    Args:
      values: float64[num_values], finite.
      seed: int64[2], a secret seed, different for each client and round.
      public_seed: int64[2], a public seed of the round, the same for all clients.

    Returns:
      The integers, `dtype`[num_integers].
    """

  @abc.abstractmethod
  def decode_sum(
      self, total: tf.Tensor, num_clients: tf.Tensor, public_seed: tf.Tensor
  ) -> tf.Tensor:
    """Decodes the sum of clients' integers to the sum of their noisy values.

    Args:
      total: The sum of `encode`'s integers over clients, [num_integers].
      num_clients: Number of clients in the sum, an integer scalar.
      public_seed: The public seed that `encode` got.

    Returns:
      float64[num_values].
    """

  @abc.abstractmethod
  def secure_sum(self, reports: tff.Value) -> tff.Value:
    """Sums reports securely, within a `tff.federated_computation`.

    Args:
      reports: At clients.

    Returns:
      At the server, a structure as a report.
    """

  @abc.abstractmethod
  def sum(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Sums clients' integers as `secure_sum` does, for audits and tests."""

  @abc.abstractmethod
  def describe(self, unit: str) -> str:
    """Describes the encoding in one line; `unit` is appended to values."""


@dataclasses.dataclass(frozen=True)
class GaussianChannel(fixed_point.FixedPoint, Channel):
  """Gaussian noise in real arithmetic, then fixed point, for an ordinary secure sum.

  Attributes:
    num_values: Length of a vector.
    share_stddev: Standard deviation of one client's noise; 0: no noise.
  """

  num_values: int = 0
  share_stddev: float = 0.0

  @property
  def num_integers(self) -> int:
    return self.num_values

  @property
  def dtype(self) -> tf.DType:
    return tf.int32 if self.wire_bits == 32 else tf.int64

  def encode(
      self, values: tf.Tensor, seed: tf.Tensor, public_seed: tf.Tensor
  ) -> tf.Tensor:
    del public_seed  # Nothing is rotated.
    if self.share_stddev:
      values += noise_shares.gaussian_share(self.num_values, self.share_stddev, seed)
    inside = tf.clip_by_value(values, -self.value_bound, self.value_bound)
    steps = tf.round(inside * (self.levels / self.value_bound))
    return tf.cast(steps, self.dtype) + tf.constant(self.levels, self.dtype)

  def decode_sum(
      self, total: tf.Tensor, num_clients: tf.Tensor, public_seed: tf.Tensor
  ) -> tf.Tensor:
    del public_seed
    offset = tf.cast(num_clients, self.dtype) * tf.constant(self.levels, self.dtype)
    return tf.cast(total - offset, tf.float64) * self.step

  def secure_sum(self, reports: tff.Value) -> tff.Value:
    most = collections.OrderedDict(values=self.max_input, participants=1)
    return tff.federated_secure_sum(reports, most)

  def sum(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n(list(values))

  def describe(self, unit: str) -> str:
    return (
        f'{self.bits} bits a value in [{-self.value_bound:.4g},'
        f' {self.value_bound:.4g}]{unit}, step {self.step:.2g}{unit}; sums in'
        f' {self.dtype.name}'
    )
