"""Options of the private sum as one object, checked once; works without TensorFlow."""

from collections.abc import Callable
import dataclasses
import math
import numbers
from typing import Any, Optional, Union

from fedsmp_tff import errors
from fedsmp_tff.mechanism import adaptive_clipping as adaptive_clipping_lib
from fedsmp_tff.mechanism import integer_noise

GAUSSIAN = 'gaussian'
DISCRETE_GAUSSIAN = 'discrete_gaussian'
KINDS = (GAUSSIAN, DISCRETE_GAUSSIAN)

_DEFAULT_VALUE_BOUND = 16.0  # Without clipping; far above the values of model updates.
# Encoded range of a noise share, in standard deviations. A share beyond it is cut before the sum,
# which is not post-processing of the sum and would have to be part of delta. Its probability is
# 3.6e-33 per value, and 3.6e-16 over 10^6 values, 10^5 clients and 10^6 rounds: less than the PLD
# accountant itself cuts off.
_NOISE_TAIL = 12.0
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_MIN_BITS = 8
_MAX_BITS = 50  # Values are rounded in float64, which has 53 bits.


@dataclasses.dataclass(frozen=True)
class Mechanism:
  """Holds the options of the private sum: clip, noise, encoding and number of participants.

  `PrivacySpec.mechanism()` returns the mechanism for which its epsilon is valid. Without a
  `clipping_norm` there is no differential privacy: clients neither clip nor add noise.

  >>> mechanism = Mechanism(clients_per_round=100, clipping_norm=1.0, noise_multiplier=1.4)
  >>> mechanism.num_slots, round(mechanism.share_stddev, 3)
  (100, 0.14)
  >>> Mechanism(clients_per_round=100, noise_multiplier=1.4)  # doctest: +ELLIPSIS
  Traceback (most recent call last):
    ...
  ValueError: `noise_multiplier`=1.4 needs a `clipping_norm`, which bounds ...

  Attributes:
    clients_per_round: r, number of sampled clients (Poisson: expected), and the divisor of sums.
    clipping_norm: C, the L2 norm to which a client's k values are clipped; None: no DP.
    noise_multiplier: sigma; the noise in a released sum has stddev C sigma or more.
    num_slots: Number of participants of a round, at least r; None: r.
    min_reports: Minimum number of participants whose sum is released; their noise shares alone
      add up to sigma. None: a round with other than `num_slots` participants fails.
    noise: `gaussian`, or `discrete_gaussian` for noise in integers.
    bits: Bits of each integer in a report. None: the maximum for which a sum over all slots
      fits in int32; for `discrete_gaussian` see `integer_noise.default_bits`.
    num_values: Length of the vector for which epsilon of `discrete_gaussian` noise holds: k, plus
      one for the vote of `adaptive_clipping`; None: any.
    value_bound: Maximum encoded magnitude without clipping; None: 16 (times d/k for `RandK`).
    adaptive_clipping: Rule that adapts C, starting at `clipping_norm`; None: C is constant.
    clipping_schedule: Function from a round's number (int32 scalar tensor, from 0) to a positive
      factor on `clipping_norm`; None: 1. Noise is scaled to the round's C, so that epsilon is
      unchanged. Excludes `adaptive_clipping`.

  Raises:
    ValueError: If a number is out of range, or two options exclude each other.
  """

  clients_per_round: int
  clipping_norm: Optional[float] = None
  noise_multiplier: float = 0.0
  num_slots: Optional[int] = None
  min_reports: Optional[int] = None
  noise: str = GAUSSIAN
  bits: Optional[int] = None
  num_values: Optional[int] = None
  value_bound: Optional[float] = None
  adaptive_clipping: Optional[adaptive_clipping_lib.AdaptiveClipping] = None
  clipping_schedule: Optional[Callable[[Any], Any]] = None

  def __post_init__(self):
    # Each check is of the form `not (good)`: NaN compares false.
    r = self.clients_per_round
    errors.check_positive('clients_per_round', r)
    if self.num_slots is None:
      object.__setattr__(self, 'num_slots', r)
    num_slots, least = self.num_slots, self.min_reports
    if not isinstance(num_slots, numbers.Integral) or num_slots < r:
      raise ValueError(
          f'`num_slots` must be an integer at least `clients_per_round`={r}. Found {num_slots}.'
      )
    if least is not None and not 1 <= least <= num_slots:
      raise ValueError(f'`min_reports` must be from 1 to `num_slots`={num_slots}. Found {least}.')
    if self.private and not 0 < self.clipping_norm < math.inf:
      raise ValueError(f'`clipping_norm` must be positive and finite. Found {self.clipping_norm}.')
    if not 0 <= self.noise_multiplier < math.inf:
      raise errors.ArgumentError(
          'noise_multiplier', f'must be non-negative and finite. Found {self.noise_multiplier}.'
      )
    if self.noise not in KINDS:
      raise ValueError(f'`noise` must be one of {KINDS}. Found {self.noise!r}.')
    if self.value_bound is not None and self.private:
      raise ValueError(
          f'`value_bound`={self.value_bound} needs `clipping_norm=None`: a clip already bounds'
          f' values. Found {self.clipping_norm}.'
      )
    for name in ('noise_multiplier', 'noise', 'adaptive_clipping', 'clipping_schedule'):
      value = getattr(self, name)
      if value and value != GAUSSIAN and not self.private:
        raise ValueError(
            f'`{name}`={value!r} needs a `clipping_norm`, which bounds what a client sends.'
            ' Found None.'
        )
    if self.adaptive_clipping and self.clipping_schedule:
      raise ValueError(
          '`clipping_schedule` and `adaptive_clipping` both set C; set one of them. Found'
          f' {self.clipping_schedule} and {self.adaptive_clipping}.'
      )
    if self.bits is not None or self.value_bound is not None:
      self.encoding(self.num_values or 1)  # Checks them.

  @property
  def private(self) -> bool:
    """Whether clients clip and add noise."""
    return self.clipping_norm is not None

  @property
  def noise_shares(self) -> int:
    """Minimum number of noise shares in a released sum."""
    return self.min_reports or self.num_slots

  @property
  def share_stddev(self) -> float:
    """Standard deviation of one noise share, in units of C."""
    return share_stddev(self.noise_multiplier, self.noise_shares)

  @property
  def vote_weight(self) -> float:
    """Factor on a client's vote on C; 0 if C does not adapt."""
    if self.adaptive_clipping is None:
      return 0.0
    return self.adaptive_clipping.vote_weight(self.noise_multiplier, self.clients_per_round)

  @property
  def value_weight(self) -> float:
    """Factor on the clipped values, which leaves room for the vote."""
    if self.adaptive_clipping is None:
      return 1.0
    return self.adaptive_clipping.value_weight(self.noise_multiplier, self.clients_per_round)

  @property
  def values_noise_multiplier(self) -> float:
    """Noise multiplier of the k values alone; exceeds sigma if C adapts."""
    return self.noise_multiplier / self.value_weight

  def encoding(
      self, num_values: int, scale: float = 1.0
  ) -> Union['FixedPoint', integer_noise.Lattice]:
    """Returns the encoding of `num_values` values.

    Args:
      num_values: Length of a client's vector.
      scale: Factor on values before the clip: d/k for `RandK`, else 1.

    Raises:
      ValueError: If `bits` are too few for the noise shares.
    """
    if self.noise != GAUSSIAN:
      params = (
          num_values, self.noise_multiplier, self.clients_per_round, self.num_slots,
          self.noise_shares,
      )
      bits = integer_noise.default_bits(*params) if self.bits is None else self.bits
      return integer_noise.Lattice(bits, *params)
    if self.private:
      bound = 1 + _NOISE_TAIL * self.share_stddev
    else:
      bound = _DEFAULT_VALUE_BOUND * scale if self.value_bound is None else self.value_bound
    bits = default_bits(self.num_slots) if self.bits is None else self.bits
    encoding = FixedPoint(bits, bound, self.num_slots)
    # Shares far below a step would be rounded to zero, and the sum would lack their noise.
    if 0 < self.share_stddev < encoding.step:
      least = math.ceil(math.log2(bound / self.share_stddev + 1)) + 1
      raise errors.ArgumentError(
          'noise_multiplier',
          f'is too small: {bits} bits per value have a step of {encoding.step:.2g} C, above the'
          f' standard deviation of a noise share, {self.share_stddev:.2g} C. Set a larger one'
          f' (smaller epsilon){f", or `bits` to {least} or more" if self.bits else ""}.',
      )
    return encoding


def share_stddev(noise_stddev: float, num_shares: int) -> float:
  """Returns the stddev of one client's noise share, `noise_stddev / sqrt(num_shares)`.

  Algorithm 1, last line of DP-spar: N(0, C^2 sigma^2 / r) per coordinate. The sum of r shares is
  N(0, C^2 sigma^2), the Gaussian mechanism of Lemma 3 for a sum of sensitivity C.
  """
  return noise_stddev / math.sqrt(num_shares)


def default_bits(num_summands: int) -> int:
  """Returns the maximum number of bits per value for which a sum fits in int32."""
  return 31 - (num_summands - 1).bit_length()


@dataclasses.dataclass(frozen=True)
class FixedPoint:
  """Describes the fixed-point encoding of values, for a sum over clients.

  A value x in [-B, B] becomes the integer round(x / step) + L in [0, 2 L], with
  L = 2^(bits - 1) - 1 and step = B / L; values outside are cut to -B or B. A sum of at most
  `num_summands` values stays below 2^31 (32 bits on the wire) or 2^63 (64): it can neither
  overflow nor wrap, whatever clients send. The decoded mean of values in range is within step / 2
  of their mean, besides float64's relative error of 2^-52.

  Attributes:
    bits: Bits per value.
    value_bound: B, the largest magnitude that is represented.
    num_summands: Maximum number of clients in a sum: the slots of a round.

  Raises:
    ValueError: If `bits` or `value_bound` is out of range.
  """

  bits: int
  value_bound: float
  num_summands: int

  def __post_init__(self):
    most = min((_INT64_MAX // self.num_summands).bit_length() - 1, _MAX_BITS)
    if not isinstance(self.bits, int) or not _MIN_BITS <= self.bits <= most:
      raise ValueError(
          f'`bits` must be an integer from {_MIN_BITS} to {most} for sums over'
          f' {self.num_summands} slots. Found {self.bits}; change `bits`, or lower `num_slots`.'
      )
    if not 0 < self.value_bound < math.inf:
      raise ValueError(f'`value_bound` must be positive and finite. Found {self.value_bound}.')

  @property
  def levels(self) -> int:
    """L, the number of steps from 0 to B."""
    return 2 ** (self.bits - 1) - 1

  @property
  def step(self) -> float:
    """Distance between adjacent representable values."""
    return self.value_bound / self.levels

  @property
  def max_input(self) -> int:
    """Largest integer in a report; the smallest is 0."""
    return 2 * self.levels

  @property
  def wire_bits(self) -> int:
    """Bits of an integer in a report: 32 if the sum fits, else 64."""
    return 32 if self.num_summands * self.max_input <= _INT32_MAX else 64
