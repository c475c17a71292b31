"""Channels: turn a client's vector into noisy integers, and the sum of these into a vector.

Bits, ranges and steps are in the channel's encoding, `mechanism.FixedPoint` or
`integer_noise.Lattice`, which works without TensorFlow.
"""

import abc
import collections
from collections.abc import Callable, Sequence
import math

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import randomness
from fedsmp_tff.mechanism import integer_noise
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import noise_shares

Report = collections.OrderedDict  # Integers: `values`, [num_integers], and `participants`, 1.
_MAX_TRIES = 1000


class Channel(abc.ABC):
  """Adds a client's noise share, encodes, sums securely, and decodes.

  `FedSmpRound` passes the vector that the guarantee is about: of norm at most 1, in units of C
  (unscaled without clipping). To use a custom channel, pass its class to `FedSmpFactory` as
  `make_channel`. `PrivacySpec` accounts only for `GaussianChannel` and `LatticeChannel`: you must
  prove the guarantee of any other channel.

  Attributes:
    mechanism: Options of the private sum.
    encoding: `mechanism.encoding()`; its `wire_bits` are the bits per integer on the wire, its
      `step` is the distance between adjacent representable values.
    num_values: Length of a client's vector.
    num_integers: Number of integers in a report.
    dtype: Type of the integers.
    allows_xla: Whether XLA may compile the TensorFlow functions.
  """

  num_integers: int
  dtype: tf.DType
  allows_xla = True

  def __init__(self, mechanism: mechanism_lib.Mechanism, num_values: int, scale: float = 1.0):
    """Initializes the channel; see `Mechanism.encoding` for `scale`."""
    self.mechanism = mechanism
    self.encoding = mechanism.encoding(scale)
    self.num_values = num_values

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


class GaussianChannel(Channel):
  """Gaussian noise in real arithmetic, then fixed point, for an ordinary secure sum."""

  @property
  def num_integers(self) -> int:
    return self.num_values

  @property
  def dtype(self) -> tf.DType:
    return tf.int32 if self.encoding.wire_bits == 32 else tf.int64

  def encode(self, values: tf.Tensor, seed: tf.Tensor, public_seed: tf.Tensor) -> tf.Tensor:
    del public_seed
    if stddev := self.mechanism.share_stddev:
      values += noise_shares.gaussian_share(self.num_values, stddev, seed)
    bound, levels = self.encoding.value_bound, self.encoding.levels
    steps = tf.round(tf.clip_by_value(values, -bound, bound) * (levels / bound))
    return tf.cast(steps, self.dtype) + tf.constant(levels, self.dtype)

  def decode_sum(
      self, total: tf.Tensor, num_clients: tf.Tensor, public_seed: tf.Tensor
  ) -> tf.Tensor:
    del public_seed
    offset = tf.cast(num_clients, self.dtype) * tf.constant(self.encoding.levels, self.dtype)
    return tf.cast(total - offset, tf.float64) * self.encoding.step

  def secure_sum(self, reports: tff.Value) -> tff.Value:
    bounds = collections.OrderedDict(values=self.encoding.max_input, participants=1)
    return tff.federated_secure_sum(reports, bounds)

  def sum(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n(list(values))

  def describe(self, unit: str) -> str:
    bits, bound, step = self.encoding.bits, self.encoding.value_bound, self.encoding.step
    return (
        f'{bits} bits per value in [{-bound:.4g}, {bound:.4g}]{unit}, step {step:.2g}{unit}; sums in'
        f' {self.dtype.name}'
    )


class LatticeChannel(Channel):
  """Rounds vectors of norm at most 1 to integers, adds integer noise, sums modulo 2^bits."""

  dtype = tf.int32
  # Its phases would differ from the server's, and the rotation would not be undone. Also, XLA lacks
  # an inverse Fourier transform of complex128.
  allows_xla = False

  @property
  def num_integers(self) -> int:
    return self.encoding.num_integers

  def encode(self, values: tf.Tensor, seed: tf.Tensor, public_seed: tf.Tensor) -> tf.Tensor:
    integers = self._round(
        self._rotate(values, public_seed) * self.encoding.scale,
        randomness.derive(seed, randomness.Stream.ROUNDING),
    )
    if self.mechanism.noise_multiplier:
      integers += noise_shares.integer_share(
          self.num_integers, self.encoding.share_variance,
          randomness.derive(seed, randomness.Stream.INTEGER_NOISE),
      )
    return tf.cast(tf.math.floormod(integers, self.encoding.modulus), self.dtype)

  def decode_sum(
      self, total: tf.Tensor, num_clients: tf.Tensor, public_seed: tf.Tensor
  ) -> tf.Tensor:
    del num_clients  # There is no offset to remove.
    modulus = self.encoding.modulus
    centered = tf.math.floormod(tf.cast(total, tf.int64) + modulus // 2, modulus) - modulus // 2
    return self._rotate_back(tf.cast(centered, tf.float64) * self.encoding.step, public_seed)

  def secure_sum(self, reports: tff.Value) -> tff.Value:
    modular_sum = tff.backends.mapreduce.federated_secure_modular_sum
    return tff.federated_zip(collections.OrderedDict(
        values=modular_sum(reports['values'], self.encoding.modulus),
        participants=tff.federated_secure_sum(reports['participants'], 1),
    ))

  def sum(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.math.floormod(tf.add_n(list(values)), self.encoding.modulus)

  def describe(self, unit: str) -> str:
    bits, bound, step = self.encoding.bits, self.encoding.value_bound, self.encoding.step
    return (
        f'{self.num_integers:,} integers modulo 2^{bits}, after a random rotation; sums within'
        f' {bound:.4g}{unit} don\'t wrap around, step {step:.2g}{unit}'
    )

  def _round(self, values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    low = tf.floor(values)

    def rounding(tries):
      coins = tf.random.stateless_uniform(
          [self.num_integers], randomness.fold_in(seed, tries), dtype=tf.float64
      )
      return tf.cast(low + tf.cast(coins < values - low, tf.float64), tf.int64)

    def too_long(integers):
      return tf.reduce_sum(integers**2) > self.encoding.squared_norm_bound

    _, integers = tf.while_loop(
        lambda tries, integers: too_long(integers) & (tries < _MAX_TRIES),
        lambda tries, _: (tries + 1, rounding(tries)),
        (tf.constant(1), rounding(0)),
        parallel_iterations=1,
    )
    # A vector above the bound is never sent, even after all tries.
    return tf.where(too_long(integers), tf.zeros_like(integers), integers)

  def _rotate(self, values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    padded = tf.pad(values, [[0, self.num_integers - self.num_values]])
    pairs = tf.complex(*tf.split(padded, 2)) * self._phases(seed)
    spread = tf.signal.fft(pairs) / math.sqrt(self.num_integers // 2)
    return tf.concat([tf.math.real(spread), tf.math.imag(spread)], 0)

  def _rotate_back(self, values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
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


_CHANNELS = {
    mechanism_lib.Gaussian: GaussianChannel, integer_noise.DiscreteGaussian: LatticeChannel
}
# Maps a mechanism, the length of a client's vector and the scale of its values to a channel.
MakeChannel = Callable[[mechanism_lib.Mechanism, int, float], Channel]


def make_channel(mechanism: mechanism_lib.Mechanism, num_values: int, scale: float) -> Channel:
  """Makes the channel for `Mechanism.noise`."""
  return _CHANNELS[type(mechanism.noise)](mechanism, num_values, scale)
