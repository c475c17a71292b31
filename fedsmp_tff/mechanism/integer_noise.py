"""Integer noise: vectors rounded to integers, discrete Gaussian noise, sums modulo 2^b.

The integers that leave a client carry the guarantee: a client rounds before it adds the noise, and
noise is in integers. Wrapping around, the secure sum and the server's work are post-processing.
Floating point only chooses the integers, whose norm is checked.

Source: Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning
with Secure Aggregation" (2021).
"""

import contextlib
import dataclasses
import decimal
import functools
import math
import typing
from typing import NamedTuple, Optional

import numpy as np

from fedsmp_tff import errors

if typing.TYPE_CHECKING:
  from fedsmp_tff.mechanism import mechanism as mechanism_lib

# Half the range of a sum, in standard deviations of its values. A value leaves the range with
# probability 2e-9, and is then wrong by the whole range.
_RANGE = 6.0
_BETA = math.exp(-0.5)  # A random rounding is accepted with probability at least 1 - beta.
_MIN_BITS, _MAX_BITS = 8, 30
_DEFAULT_BITS = 16
# Minimum share variance, in squared steps, that a Gaussian dominates (`privacy.discrete_gaussian`).
MIN_SHARE_VARIANCE = 8.0
_DIGITS = 60  # Decimal digits in the computation of a table.
_TAIL = decimal.Decimal(2) ** -80  # Maximum probability beyond each end of a table.
_MAX_ENTRIES = 2**18


@dataclasses.dataclass(frozen=True)
class Lattice:
  """Describes the encoding of vectors of norm at most 1 as integers modulo 2^bits.

  A client rotates its vector at random (all clients alike), scales it, rounds it at random to
  integers of squared norm at most `squared_norm_bound`, adds its share of discrete Gaussian noise
  and reduces modulo 2^bits. The server takes the sum modulo 2^bits as a number around zero, scales
  it and rotates it back. A sum out of range wraps around, which costs accuracy, never privacy.

  Attributes:
    mechanism: A `Mechanism` with `DiscreteGaussian` noise. The range of a sum fits
      `clients_per_round` vectors of norm 1 and the noise shares of all slots.
    bits: Bits of each integer, in a report and in the sum.

  Raises:
    ValueError: If `bits` is out of range, or so small that a noise share has a variance under
      8 squared steps: no Gaussian would dominate it.
  """

  mechanism: 'mechanism_lib.Mechanism'
  bits: int

  def __post_init__(self):
    rule = f'an integer from {_MIN_BITS} to {_MAX_BITS} with integer noise'
    errors.check_value(_MIN_BITS <= self.bits <= _MAX_BITS, 'bits', rule, self.bits)
    if self.mechanism.noise_multiplier and self.share_variance < MIN_SHARE_VARIANCE:
      more_bits = f', or `bits` (at most {_MAX_BITS})' if self.bits < _MAX_BITS else ''
      raise errors.ArgumentError(
          'noise_multiplier',
          'is too small: a noise share must have a variance of at least'
          f' {MIN_SHARE_VARIANCE:g} squared steps, as the guarantee requires. With {self.bits} bits'
          f' per value it has {self.share_variance:.3g}. Raise it{more_bits}.',
      )

  @property
  def num_integers(self) -> int:
    """Number of integers in a report: even, for the rotation."""
    num_values = self.mechanism.noise.num_values
    return num_values + num_values % 2

  @property
  def wire_bits(self) -> int:
    """Bits of an integer in a report."""
    return self.bits

  @property
  def modulus(self) -> int:
    return 2**self.bits

  @property
  def value_bound(self) -> float:
    """Largest value of a sum that does not wrap around."""
    m = self.mechanism
    noise_stddev = m.noise_multiplier * math.sqrt(m.num_slots / m.min_reports)
    return _RANGE * math.hypot(m.clients_per_round / math.sqrt(self.num_integers), noise_stddev)

  @property
  def scale(self) -> float:
    """Norm, in steps, of an encoded vector of norm 1."""
    return (self.modulus // 2 - 1) / self.value_bound

  @property
  def step(self) -> float:
    return 1 / self.scale

  @property
  def squared_norm_bound(self) -> int:
    """Largest squared L2 norm of a client's integers, before noise.

    Kairouz, Liu, Steinke 2021, conditional rounding: a random rounding satisfies it
    with probability at least 1 - beta, and is repeated otherwise.
    """
    root = math.sqrt(self.num_integers)
    spread = math.sqrt(2 * math.log(1 / _BETA)) * (self.scale + root / 2)
    return math.floor(min((self.scale + root) ** 2, self.scale**2 + root**2 / 4 + spread))

  @property
  def share_variance(self) -> float:
    """Variance of one noise share, in squared steps."""
    return (self.mechanism.share_stddev * self.scale) ** 2

  @property
  def statistical_distance(self) -> float:
    """Bound on the total variation distance of a release from one with exact noise."""
    if not self.mechanism.noise_multiplier:
      return 0.0
    return self.mechanism.num_slots * self.num_integers * integer_table(self.share_variance).distance


@dataclasses.dataclass(frozen=True)
class DiscreteGaussian:
  """Discrete Gaussian noise, added to vectors after they were rounded to integers.

  Attributes:
    num_values: Length of the vectors for which epsilon holds: k, plus one for the vote of
      `adaptive_clipping`. A round with another length is refused.
    bits: Bits of each integer in a report. None: 16, or the smallest larger number that `Lattice`
      accepts.
  """

  num_values: int
  bits: Optional[int] = None

  name = 'discrete_gaussian'
  assumption = 'truly random bits'

  def __post_init__(self):
    errors.check_positive('num_values', self.num_values)  # Not None.
    errors.convert_integers(self, 'num_values', 'bits')

  def encoding(self, mechanism: 'mechanism_lib.Mechanism', scale: float) -> Lattice:
    """See `Mechanism.encoding`."""
    del scale  # Clipped vectors have norm 1.
    if not mechanism.private:
      raise ValueError(
          f'`noise`={self.name} needs a `clipping_norm`, which bounds what a client sends. Found'
          ' None.'
      )
    if self.bits is not None:
      return Lattice(mechanism, self.bits)
    for bits in range(_DEFAULT_BITS, _MAX_BITS):
      with contextlib.suppress(ValueError):
        return Lattice(mechanism, bits)
    return Lattice(mechanism, _MAX_BITS)


class IntegerTable(NamedTuple):
  """Cumulative probabilities of a distribution over integers, in 128 bits each.

  Attributes:
    lowest: Smallest integer.
    high: int64[num - 1], ascending: the upper 64 bits, minus 2^63.
    low: int64[num - 1]: the lower 64 bits, minus 2^63.
    distance: Upper bound on the total variation distance of a draw from the distribution.
  """

  lowest: int
  high: np.ndarray
  low: np.ndarray
  distance: float


@functools.lru_cache(maxsize=8)
def integer_table(variance: float) -> IntegerTable:
  """Returns the table of discrete Gaussian noise for `noise_shares.integer_share`.

  Args:
    variance: Positive; probabilities are proportional to exp(-x^2 / (2 variance)).

  Raises:
    ValueError: If the table would have over 2^18 integers.
  """
  entries = 2 * (math.ceil(12 * math.sqrt(variance)) + 40)  # Negligible probability beyond.
  if entries > _MAX_ENTRIES:
    raise errors.ArgumentError(
        'bits',
        f'are too many: integer noise of standard deviation {math.sqrt(variance):.4g} per client is'
        ' too wide to draw exactly. Lower them.',
    )
  with decimal.localcontext(decimal.Context(prec=_DIGITS)):
    v = decimal.Decimal(variance)
    weights, ratio, step = [decimal.Decimal(1)], (-1 / (2 * v)).exp(), (-1 / v).exp()
    for _ in range(entries // 2):
      weights.append(weights[-1] * ratio)
      ratio *= step
    total = weights[0] + 2 * sum(weights[1:])
    while len(weights) > 2 and weights[-1] < _TAIL * total / entries:
      weights.pop()
    tail = total - weights[0] - 2 * sum(weights[1:])
    cumulative, thresholds = decimal.Decimal(0), []
    for weight in [*reversed(weights[1:]), *weights[:-1]]:
      cumulative += weight
      # Rounding may bring the last threshold to 2^128.
      thresholds.append(min(int(cumulative / (total - tail) * 2**128), 2**128 - 1))
  high = np.array([(t >> 64) - 2**63 for t in thresholds], np.int64)
  low = np.array([(t & (2**64 - 1)) - 2**63 for t in thresholds], np.int64)
  _, times = np.unique(high, return_counts=True)
  # A draw compares lower halves only with the first of the thresholds that share an upper half.
  ties = np.count_nonzero(times > 1)
  distance = float(tail / total) + ties * 2.0**-64 + len(high) * 2.0**-128
  return IntegerTable(1 - len(weights), high, low, distance)
