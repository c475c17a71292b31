"""The channel of integer noise: TensorFlow functions on a `Lattice`."""

import collections
from collections.abc import Sequence
import dataclasses
import math

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import randomness
from fedsmp_tff.mechanism import channel
from fedsmp_tff.mechanism import lattice
from fedsmp_tff.mechanism import noise_shares

_MOST_TRIES = 1000


@dataclasses.dataclass(frozen=True)
class LatticeChannel(lattice.Lattice, channel.Channel):
  """Rounds vectors of norm at most 1 to integers, adds integer noise, sums modulo 2^bits."""

  @property
  def dtype(self) -> tf.DType:
    return tf.int32

  @property
  def wire_bits(self) -> int:
    return self.bits

  def encode(
      self, values: tf.Tensor, seed: tf.Tensor, public_seed: tf.Tensor
  ) -> tf.Tensor:
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
    del num_clients  # Zero is zero.
    half = self.modulus // 2
    centered = tf.math.floormod(tf.cast(total, tf.int64) + half, self.modulus) - half
    return self._rotated_back(tf.cast(centered, tf.float64) * self.step, public_seed)

  def secure_sum(self, reports: tff.Value) -> tff.Value:
    return tff.federated_zip(collections.OrderedDict(
        values=tff.backends.mapreduce.federated_secure_modular_sum(
            reports['values'], self.modulus
        ),
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

    tries, integers = tf.while_loop(
        lambda tries, integers: too_long(integers) & (tries < _MOST_TRIES),
        lambda tries, _: (tries + 1, rounding(tries)),
        (tf.constant(1), rounding(0)),
        parallel_iterations=1,
    )
    del tries
    # Whatever happened, nothing longer than the bound gets noise.
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
