"""Options of the private sum, its two kinds of noise, and fixed point; works without TensorFlow."""

import dataclasses
import math
import numbers
from typing import Optional, Union

from fedsmp_tff import errors
from fedsmp_tff.mechanism import adaptive_clipping as adaptive_clipping_lib
from fedsmp_tff.mechanism import integer_noise

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
class FixedPoint:
  """Describes the fixed-point encoding of values, for a sum over all slots.

  A value x in [-B, B] becomes the integer round(x / step) + L in [0, 2 L], with
  L = 2^(bits - 1) - 1 and step = B / L; values outside are cut to -B or B. A sum over all slots
  stays below 2^31 (32 bits on the wire) or 2^63 (64): it can neither overflow nor wrap, whatever
  clients send. The decoded mean of values in range is within step / 2 of their mean, besides
  float64's relative error of 2^-52.

  Attributes:
    mechanism: Options of the private sum, with `Gaussian` noise.
    scale: See `Mechanism.encoding`.

  Raises:
    ValueError: If `bits` or `value_bound` is out of range, or `bits` are too few for the shares.
  """

  mechanism: 'Mechanism'
  scale: float = 1.0

  def __post_init__(self):
    bits, bound, num_slots = self.bits, self.value_bound, self.mechanism.num_slots
    max_bits = min((_INT64_MAX // num_slots).bit_length() - 1, _MAX_BITS)
    if not _MIN_BITS <= bits <= max_bits:
      raise ValueError(
          f'`bits` must be an integer from {_MIN_BITS} to {max_bits} for sums over {num_slots}'
          f' slots. Found {bits}; change `bits`, or lower `num_slots`.'
      )
    errors.check_value(0 < bound < math.inf, 'value_bound', 'positive and finite', bound)
    # Shares far below a step would be rounded to zero, and the sum would lack their noise.
    if 0 < (share := self.mechanism.share_stddev) < self.step:
      needed = math.ceil(math.log2(bound / share + 1)) + 1
      more_bits = f', or `bits` to {needed} or more' if self.mechanism.noise.bits else ''
      raise errors.ArgumentError(
          'noise_multiplier',
          f'is too small: {bits} bits per value have a step of {self.step:.2g} C, above the standard'
          f' deviation of a noise share, {share:.2g} C. Set a larger one (smaller epsilon){more_bits}.',
      )

  @property
  def bits(self) -> int:
    """Bits per value; by default the maximum for which a sum fits in int32."""
    return self.mechanism.noise.bits or 31 - (self.mechanism.num_slots - 1).bit_length()

  @property
  def value_bound(self) -> float:
    """B, the largest magnitude that is represented."""
    mechanism = self.mechanism
    if mechanism.private:
      return 1 + _NOISE_TAIL * mechanism.share_stddev
    bound = mechanism.value_bound
    return _DEFAULT_VALUE_BOUND * self.scale if bound is None else bound

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
    return 32 if self.mechanism.num_slots * self.max_input <= _INT32_MAX else 64


@dataclasses.dataclass(frozen=True)
class Gaussian:
  """Gaussian noise in real arithmetic, rounded to fixed point together with the values.

  Attributes:
    bits: Bits of each integer in a report; None: see `FixedPoint.bits`.
  """

  bits: Optional[int] = None

  name, assumption = 'gaussian', 'exact arithmetic'
  num_values = None  # Epsilon holds for vectors of any length.

  def __post_init__(self):
    errors.convert_integers(self, 'bits')

  def encoding(self, mechanism: 'Mechanism', scale: float) -> FixedPoint:
    """See `Mechanism.encoding`."""
    return FixedPoint(mechanism, scale)


Noise = Union[Gaussian, integer_noise.DiscreteGaussian]
NOISES = (Gaussian.name, integer_noise.DiscreteGaussian.name)


def make_noise(name: str, num_values: Optional[int], bits: Optional[int] = None) -> Noise:
  """Returns the noise with one of the names `NOISES`, for vectors of length `num_values`."""
  if name == Gaussian.name:
    return Gaussian(bits)
  if name == integer_noise.DiscreteGaussian.name:
    return integer_noise.DiscreteGaussian(num_values, bits)
  raise ValueError(f'`noise` must be one of {NOISES}. Found {name!r}.')


@dataclasses.dataclass(frozen=True)
class Mechanism:
  """Holds the options of the private sum: clip, noise and number of participants.

  `PrivacySpec.mechanism()` returns the mechanism for which its epsilon is valid. Without a
  `clipping_norm` there is no differential privacy: clients neither clip nor add noise.

  >>> mechanism = Mechanism(clients_per_round=100, clipping_norm=1.0, noise_multiplier=1.4)
  >>> mechanism.num_slots, mechanism.min_reports, round(mechanism.share_stddev, 3)
  (100, 100, 0.14)
  >>> Mechanism(clients_per_round=100, noise_multiplier=1.4)  # doctest: +ELLIPSIS
  Traceback (most recent call last):
    ...
  ValueError: `noise_multiplier`=1.4 needs a `clipping_norm`, which bounds ...

  Attributes:
    clients_per_round: r, number of sampled clients (Poisson: expected), and the divisor of sums.
    clipping_norm: C, the L2 norm to which a client's k values are clipped; None: no DP.
    noise_multiplier: sigma; the noise in a released sum has stddev C sigma or more.
    num_slots: Number of participants of a round, at least r. None becomes r.
    min_reports: Minimum number of participants whose sum is released; their noise shares alone
      add up to sigma. None becomes `num_slots`, and then a round of any other number fails.
    noise: `Gaussian`, or `DiscreteGaussian` for noise in integers.
    value_bound: Maximum encoded magnitude without clipping; None: 16 (times d/k for `RandK`).
    adaptive_clipping: Rule that adapts C, starting at `clipping_norm`; None: C is constant.

  Raises:
    ValueError: If a number is out of range, or two options exclude each other.
  """

  clients_per_round: int
  clipping_norm: Optional[float] = None
  noise_multiplier: float = 0.0
  num_slots: Optional[int] = None
  min_reports: Optional[int] = None
  noise: Noise = Gaussian()
  value_bound: Optional[float] = None
  adaptive_clipping: Optional[adaptive_clipping_lib.AdaptiveClipping] = None

  def __post_init__(self):
    check = errors.check_value
    r, norm, sigma = self.clients_per_round, self.clipping_norm, self.noise_multiplier
    errors.check_positive('clients_per_round', r)
    if self.num_slots is None:
      object.__setattr__(self, 'num_slots', r)
    if self.min_reports is None:
      object.__setattr__(self, 'min_reports', self.num_slots)
    num_slots, reports = self.num_slots, self.min_reports
    is_number = isinstance(num_slots, numbers.Integral) and num_slots >= r
    check(is_number, 'num_slots', f'an integer at least `clients_per_round`={r}', num_slots)
    errors.check_positive('min_reports', reports)
    check(reports <= num_slots, 'min_reports', f'from 1 to `num_slots`={num_slots}', reports)
    is_norm = norm is None or 0 < norm < math.inf
    check(is_norm, 'clipping_norm', 'positive and finite, or None (no clipping)', norm)
    check(0 <= sigma < math.inf, 'noise_multiplier', 'non-negative and finite', sigma)
    check(isinstance(self.noise, Noise), 'noise', 'Gaussian or DiscreteGaussian', self.noise)
    if self.value_bound is not None and self.private:
      raise ValueError(
          f'`value_bound`={self.value_bound} needs `clipping_norm=None`: a clip already bounds'
          f' values. Found {self.clipping_norm}.'
      )
    for name in ('noise_multiplier', 'adaptive_clipping'):
      if (value := getattr(self, name)) and not self.private:
        raise ValueError(
            f'`{name}`={value!r} needs a `clipping_norm`, which bounds what a client sends.'
            ' Found None.'
        )
    if self.noise != Gaussian() or self.value_bound is not None:
      self.encoding()  # Checks them.

  @property
  def private(self) -> bool:
    """Whether clients clip and add noise."""
    return self.clipping_norm is not None

  @property
  def share_stddev(self) -> float:
    """Standard deviation of one noise share, in units of C.

    Algorithm 1, last line of DP-spar: N(0, C^2 sigma^2 / r) per coordinate. The sum of r shares is
    N(0, C^2 sigma^2), the Gaussian mechanism of Lemma 3 for a sum of sensitivity C. Here
    `min_reports` shares add up to it.
    """
    return self.noise_multiplier / math.sqrt(self.min_reports)

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

  def encoding(self, scale: float = 1.0) -> Union[FixedPoint, integer_noise.Lattice]:
    """Returns the encoding of a client's vector as integers.

    Args:
      scale: Factor on values before the clip: d/k for `RandK`, else 1.

    Raises:
      ValueError: If `bits` are too few for the noise shares.
    """
    return self.noise.encoding(self, scale)
