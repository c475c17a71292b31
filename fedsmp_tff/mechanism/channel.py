"""Channels: turn a client's vector into noisy integers, and the sum of these into a vector.

Bits, ranges and steps come from `mechanism.FixedPoint` and `integer_noise.Lattice`, which work
without TensorFlow.
"""

import abc
import collections
from collections.abc import Callable, Sequence
import dataclasses
import math

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import randomness
from fedsmp_tff.mechanism import integer_noise
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import noise_shares

Report = collections.OrderedDict  # Integers: `values`, [num_integers], and `participants`, 1.
_MOST_TRIES = 1000


class Channel(abc.ABC):
  """Adds a client's noise share, encodes, sums securely, and decodes.

  `FedSmpRound` passes the vector that the guarantee is about: of norm at most 1, in units of C
  (unscaled without clipping). To use a custom channel, pass a function that makes it to
  `FedSmpFactory` as `make_channel`. `PrivacySpec` accounts only for `GaussianChannel` and
  `LatticeChannel`: you must prove the guarantee of any other channel.

  Attributes:
    num_values: Length of a client's vector.
    num_integers: Number of integers in a report.
    wire_bits: Bits per integer on the wire.
    step: Distance between adjacent representable values.
    dtype: Type of the integers.
  """

  num_values: int
  num_integers: int
  wire_bits: int
  step: float
  dtype: tf.DType

  @abc.abstractmethod
  def encode(self, values: tf.Tensor, seed: tf.Tensor, public_seed: tf.Tensor) -> tf.Tensor:
    """Adds a client's noise share and encodes.

    Args:
      values: float64[num_values], finite.
      seed: int64[2], a secret seed, different for each client and round.
      public_seed: int64[2], the round's public seed for all clients.

    Returns:
      The integers, `dtype`[num_integers].
    """

  @abc.abstractmethod
  def decode_sum(
      self, total: tf.Tensor, num_clients: tf.Tensor, public_seed: tf.Tensor
  ) -> tf.Tensor:
    """Decodes the sum of clients' integers into the sum of their noisy values.

    Args:
      total: `dtype`[num_integers], the sum of the integers from `encode`.
      num_clients: Number of participants in the sum, an integer scalar.
      public_seed: Public seed passed to `encode`.

    Returns:
      float64[num_values].
    """

  @abc.abstractmethod
  def secure_sum(self, reports: tff.Value) -> tff.Value:
    """Sums reports securely, from clients to server, in a `tff.federated_computation`."""

  @abc.abstractmethod
  def sum(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Sums clients' integers as `secure_sum` does, for audits and tests."""

  @abc.abstractmethod
  def describe(self, unit: str) -> str:
    """Describes the encoding in one line; `unit` is appended to values."""


@dataclasses.dataclass(frozen=True)
class GaussianChannel(mechanism_lib.FixedPoint, Channel):
  """Gaussian noise in real arithmetic, then fixed point, for an ordinary secure sum.

  Attributes:
    num_values: Length of a client's vector.
    share_stddev: Standard deviation of one noise share, in units of C; 0: no noise.
  """

  num_values: int = 0
  share_stddev: float = 0.0

  @property
  def num_integers(self) -> int:
    return self.num_values

  @property
  def dtype(self) -> tf.DType:
    return tf.int32 if self.wire_bits == 32 else tf.int64

  def encode(self, values: tf.Tensor, seed: tf.Tensor, public_seed: tf.Tensor) -> tf.Tensor:
    del public_seed
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
        f'{self.bits} bits per value in [{-self.value_bound:.4g}, {self.value_bound:.4g}]{unit},'
        f' step {self.step:.2g}{unit}; sums in {self.dtype.name}'
    )


@dataclasses.dataclass(frozen=True)
class LatticeChannel(integer_noise.Lattice, Channel):
  """Rounds vectors of norm at most 1 to integers, adds integer noise, sums modulo 2^bits.

  XLA must not compile `encode`: it draws other phases, and the server would rotate back by others.
  """

  dtype = tf.int32

  @property
  def wire_bits(self) -> int:
    return self.bits

  def encode(self, values: tf.Tensor, seed: tf.Tensor, public_seed: tf.Tensor) -> tf.Tensor:
    integers = self._rounded(
        self._rotated(values, public_seed) * self.scale,
        randomness.derive(seed, randomness.Stream.ROUNDING),
    )
    if self.noise_multiplier:
      integers += noise_shares.integer_share(
          self.num_integers, self.share_variance,
          randomness.derive(seed, randomness.Stream.INTEGER_NOISE),
      )
    return tf.cast(tf.math.floormod(integers, self.modulus), self.dtype)

  def decode_sum(
      self, total: tf.Tensor, num_clients: tf.Tensor, public_seed: tf.Tensor
  ) -> tf.Tensor:
    del num_clients  # There is no offset to remove.
    half = self.modulus // 2
    centered = tf.math.floormod(tf.cast(total, tf.int64) + half, self.modulus) - half
    return self._rotated_back(tf.cast(centered, tf.float64) * self.step, public_seed)

  def secure_sum(self, reports: tff.Value) -> tff.Value:
    return tff.federated_zip(collections.OrderedDict(
        values=tff.backends.mapreduce.federated_secure_modular_sum(reports['values'], self.modulus),
        participants=tff.federated_secure_sum(reports['participants'], 1),
    ))

  def sum(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.math.floormod(tf.add_n(list(values)), self.modulus)

  def describe(self, unit: str) -> str:
    return (
        f'{self.num_integers:,} integers modulo 2^{self.bits}, after a random rotation; sums within'
        f' {self.value_bound:.4g}{unit} don\'t wrap around, step {self.step:.2g}{unit}'
    )

  def _rounded(self, values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    low = tf.floor(values)

    def rounding(tries):
      coins = tf.random.stateless_uniform(
          [self.num_integers], randomness.fold_in(seed, tries), dtype=tf.float64
      )
      return tf.cast(low + tf.cast(coins < values - low, tf.float64), tf.int64)

    def too_long(integers):
      return tf.reduce_sum(integers**2) > self.squared_norm_bound

    _, integers = tf.while_loop(
        lambda tries, integers: too_long(integers) & (tries < _MOST_TRIES),
        lambda tries, _: (tries + 1, rounding(tries)),
        (tf.constant(1), rounding(0)),
        parallel_iterations=1,
    )
    # A vector above the bound is never sent, even after all tries.
    return tf.where(too_long(integers), tf.zeros_like(integers), integers)

  def _rotated(self, values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    padded = tf.pad(values, [[0, self.num_integers - self.num_values]])
    pairs = tf.complex(*tf.split(padded, 2)) * self._phases(seed)
    spread = tf.signal.fft(pairs) / math.sqrt(self.num_integers // 2)
    return tf.concat([tf.math.real(spread), tf.math.imag(spread)], 0)

  def _rotated_back(self, values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    spread = tf.complex(*tf.split(values, 2))
    pairs = tf.signal.ifft(spread) * math.sqrt(self.num_integers // 2)
    pairs *= tf.math.conj(self._phases(seed))
    return tf.concat([tf.math.real(pairs), tf.math.imag(pairs)], 0)[: self.num_values]

  def _phases(self, seed: tf.Tensor) -> tf.Tensor:
    angles = tf.random.stateless_uniform(
        [self.num_integers // 2], randomness.derive(seed, randomness.Stream.PHASES),
        maxval=2 * np.pi, dtype=tf.float64,
    )
    return tf.complex(tf.cos(angles), tf.sin(angles))


# Maps a mechanism, the length of a client's vector and the scale of its values to a channel.
MakeChannel = Callable[[mechanism_lib.Mechanism, int, float], Channel]


def make_channel(mechanism: mechanism_lib.Mechanism, num_values: int, scale: float) -> Channel:
  """Makes the channel for `Mechanism.noise`; for the arguments see `Mechanism.encoding`."""
  encoding = mechanism.encoding(num_values, scale)
  if isinstance(encoding, integer_noise.Lattice):
    return LatticeChannel(**dataclasses.asdict(encoding))
  return GaussianChannel(
      **dataclasses.asdict(encoding), num_values=num_values, share_stddev=mechanism.share_stddev
  )
