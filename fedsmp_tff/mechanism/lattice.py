"""Noise in a finite field: vectors rounded to integers, integer noise, sums modulo 2^b.

The integers that leave a client carry the guarantee themselves: rounding comes before the
noise, the noise is of integers, and what is left to do, wrapping around, the secure sum and
all that the server does, is post-processing. Nothing rests on floating point but the
choice of the integers, whose norm is checked.

Sources: Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation" (2021); Agarwal, Kairouz, Liu, "The Skellam Mechanism for
Differentially Private Federated Learning" (2021).
"""

import dataclasses
import functools
import math

import numpy as np
import tensorflow as tf

from fedsmp_tff import randomness
from fedsmp_tff.mechanism import noise
from fedsmp_tff.privacy import rdp as rdp_lib

# Standard deviations of a sum's values inside the field, with a rotation. A value
# leaves it with probability 2e-9, and is then wrong by the whole range.
_RANGE = 6.0
# A rounding is taken with probability 1 - beta at least.
_BETA = math.exp(-0.5)
_MOST_TRIES = 1000
_MIN_BITS, _MAX_BITS = 8, 30
DEFAULT_BITS = 16
_SIGNS, _ROUNDING, _NOISE = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Lattice:
  """Vectors of norm at most 1 as integers modulo 2^bits, and their sums back.

  At a client, a vector is rotated at random (the same rotation for all), scaled, rounded at
  random to integers whose norm is at most `norm_bound`, given its share of the integer noise
  and reduced modulo 2^bits. At the server, the sum modulo 2^bits is taken for a number around
  zero, scaled and rotated back. A sum too large for that wraps around: the value is
  then wrong by a multiple of the range, which costs accuracy, never privacy.

  Attributes:
    kind: `noise.DISCRETE_GAUSSIAN` or `noise.SKELLAM`.
    num_values: Length of a vector.
    bits: Bits of each integer, of a client's and of the sum.
    noise_multiplier: Standard deviation of the noise of a released sum, at least.
    clients_per_round: r: the range fits r vectors of norm 1.
    seats: The most shares that a sum has.
    min_reporting: The fewest shares that a released sum has.
    rotate: Whether vectors are rotated. Without it a sum may be large in one
      coordinate, so the range is wider and its steps coarser.
  """

  kind: str
  num_values: int
  bits: int
  noise_multiplier: float
  clients_per_round: int
  seats: int
  min_reporting: int
  rotate: bool = True

  def __post_init__(self):
    if self.kind not in (noise.DISCRETE_GAUSSIAN, noise.SKELLAM):
      raise ValueError(
          f'`noise` must be one of {noise.KINDS}. Found {self.kind!r}.'
      )
    if not isinstance(self.bits, int) or not _MIN_BITS <= self.bits <= _MAX_BITS:
      raise ValueError(
          f'`bits` must be an integer from {_MIN_BITS} to {_MAX_BITS} with integer'
          f' noise. Found {self.bits}.'
      )

  @property
  def num_integers(self) -> int:
    """How many integers a client sends: an even number with a rotation."""
    return self.num_values + (self.num_values % 2 if self.rotate else 0)

  @property
  def modulus(self) -> int:
    return 2**self.bits

  @property
  def dtype(self) -> tf.DType:
    return tf.int32

  @property
  def value_bound(self) -> float:
    """The largest value of a sum that does not wrap around."""
    noise_stddev = self.noise_multiplier * math.sqrt(self.seats / self.min_reporting)
    if not self.rotate:
      return self.clients_per_round + _RANGE * noise_stddev
    return _RANGE * math.hypot(
        self.clients_per_round / math.sqrt(self.num_integers), noise_stddev
    )

  @property
  def scale(self) -> float:
    """Integers that a vector of norm 1 is long."""
    return (self.modulus // 2 - 1) / self.value_bound

  @property
  def step(self) -> float:
    return 1 / self.scale

  @property
  def squared_norm_bound(self) -> int:
    """Of a client's integers, before noise: their squared L2 norm is at most this.

    Kairouz, Liu, Steinke 2021, conditional rounding: a rounding at random is within it
    with probability 1 - beta at least, and is done again where it is not.
    """
    root = math.sqrt(self.num_integers)
    return math.floor(
        min(
            (self.scale + root) ** 2,
            self.scale**2
            + root**2 / 4
            + math.sqrt(2 * math.log(1 / _BETA)) * (self.scale + root / 2),
        )
    )

  @property
  def share_variance(self) -> float:
    """Of one client's noise, in integers."""
    return (self.noise_multiplier * self.scale) ** 2 / self.min_reporting

  @property
  def statistical_distance(self) -> float:
    """Between a release and one with noise drawn exactly; see `noise.integer_table`."""
    if not self.noise_multiplier:
      return 0.0
    table = noise.integer_table(self.kind, self.share_variance)
    return self.seats * self.num_integers * table.distance

  def curve(self, moved: int) -> rdp_lib.Curve:
    """Renyi divergence between releases of which one client's vector is another.

    `DISCRETE_GAUSSIAN`: concentrated DP of sums of discrete Gaussians (nearly, not
    exactly, discrete Gaussian), Kairouz, Liu, Steinke 2021. `SKELLAM`: Renyi DP of the
    multi-dimensional Skellam mechanism, Agarwal, Kairouz, Liu 2021.

    Args:
      moved: 1 for a client added or removed, 2 for one replaced: how many vectors'
        norms the integers before noise may move by.
    """
    norm = moved * math.sqrt(self.squared_norm_bound)
    variance = self.share_variance * self.min_reporting
    return functools.partial(
        _discrete_gaussian if self.kind == noise.DISCRETE_GAUSSIAN else _skellam,
        self, norm, variance,
    )

  def encode(
      self, values: tf.Tensor, seed: tf.Tensor, public_seed: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """A client's integers, int32[num_integers] from 0 to 2^bits - 1.

    Args:
      values: float64[num_values], finite, of norm at most 1.
      seed: int64[2], of this client and round alone.
      public_seed: int64[2], the round's, the same for all clients.

    Returns:
      The integers, and how many values were out of range: none, int64.
    """
    integers = self._rounded(
        self._rotated(values, public_seed) * self.scale,
        randomness.fold_in(seed, _ROUNDING),
    )
    if self.noise_multiplier:
      integers += noise.integer_share(
          self.num_integers, self.kind, self.share_variance,
          randomness.fold_in(seed, _NOISE),
      )
    wrapped = tf.math.floormod(integers, self.modulus)
    return tf.cast(wrapped, self.dtype), tf.constant(0, tf.int64)

  def decode_sum(
      self, total: tf.Tensor, num_clients: tf.Tensor, public_seed: tf.Tensor
  ) -> tf.Tensor:
    """The sum of the values, float64[num_values], from the sum modulo 2^bits.

    Args:
      total: The sum of `encode`'s integers over clients.
      num_clients: Unused here: zero is zero.
      public_seed: As `encode`'s.
    """
    del num_clients
    half = self.modulus // 2
    centered = tf.math.floormod(tf.cast(total, tf.int64) + half, self.modulus) - half
    return self._rotated_back(tf.cast(centered, tf.float64) * self.step, public_seed)

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
    if not self.rotate:
      return values
    padded = tf.pad(values, [[0, self.num_integers - self.num_values]])
    pairs = tf.complex(*tf.split(padded, 2)) * self._phases(seed)
    spread = tf.signal.fft(pairs) / math.sqrt(self.num_integers // 2)
    return tf.concat([tf.math.real(spread), tf.math.imag(spread)], 0)

  def _rotated_back(self, values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    if not self.rotate:
      return values
    spread = tf.complex(*tf.split(values, 2))
    pairs = tf.signal.ifft(spread) * math.sqrt(self.num_integers // 2)
    pairs *= tf.math.conj(self._phases(seed))
    return tf.concat([tf.math.real(pairs), tf.math.imag(pairs)], 0)[: self.num_values]

  def _phases(self, seed: tf.Tensor) -> tf.Tensor:
    angles = tf.random.stateless_uniform(
        [self.num_integers // 2], randomness.fold_in(seed, _SIGNS),
        maxval=2 * np.pi, dtype=tf.float64,
    )
    return tf.complex(tf.cos(angles), tf.sin(angles))


def _discrete_gaussian(
    lattice: Lattice, norm: float, variance: float, order: int
) -> float:
  if not variance:
    return math.inf
  excess = _sum_excess(lattice.share_variance, lattice.seats)
  num = lattice.num_integers
  epsilon = min(
      math.sqrt(norm**2 / variance + excess * num / 2),
      norm / math.sqrt(variance) + excess * math.sqrt(num),
  )
  return order * epsilon**2 / 2


def _skellam(lattice: Lattice, norm: float, variance: float, order: int) -> float:
  if not variance:
    return math.inf
  # Of integers: the L1 norm is at most the squared L2 norm.
  norm_1 = min(math.sqrt(lattice.num_integers) * norm, norm**2)
  return order * norm**2 / (2 * variance) + min(
      ((2 * order - 1) * norm**2 + 6 * norm_1) / (4 * variance**2),
      3 * norm_1 / (2 * variance),
  )


def _sum_excess(share_variance: float, num_shares: int) -> float:
  """How far a sum of discrete Gaussians is from one (tau of the source)."""
  return 10 * sum(
      math.exp(-2 * math.pi**2 * share_variance * i / (i + 1))
      for i in range(1, num_shares)
  )
