"""Integer noise: vectors rounded to integers, discrete Gaussian noise, sums modulo 2^b.

The integers that leave a client carry the guarantee: a client rounds before it adds the noise, and
noise is in integers. Wrapping around, the secure sum and the server's work are post-processing.
Floating point only chooses the integers, whose norm is checked.

Source: Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning
with Secure Aggregation" (2021).
"""

import dataclasses
import decimal
import functools
import math
from typing import NamedTuple

import numpy as np

from fedsmp_tff import errors

# Half the range of a sum, in standard deviations of its values. A value leaves the range with
# probability 2e-9, and is then wrong by the whole range.
_RANGE = 6.0
_BETA = math.exp(-0.5)  # A random rounding is accepted with probability at least 1 - beta.
_MIN_BITS, _MAX_BITS = 8, 30
_DEFAULT_BITS = 16
# Minimum share variance, in squared steps, that a Gaussian dominates (`privacy.discrete_gaussian`).
LEAST_SHARE_VARIANCE = 8.0
_DIGITS = 60  # Decimal digits in the computation of a table.
_TAIL = decimal.Decimal(2) ** -80  # Maximum probability beyond each end of a table.
_MOST_ENTRIES = 2**18


def default_bits(
    num_values: int, noise_multiplier: float, clients_per_round: int, num_slots: int,
    min_reports: int,
) -> int:
  """Returns 16, or the smallest larger number of bits that `Lattice` accepts."""
  bits = _DEFAULT_BITS
  while bits < _MAX_BITS and noise_multiplier:
    try:
      Lattice(bits, num_values, noise_multiplier, clients_per_round, num_slots, min_reports)
      break
    except ValueError:
      bits += 1
  return bits


@dataclasses.dataclass(frozen=True)
class Lattice:
  """Describes the encoding of vectors of norm at most 1 as integers modulo 2^bits.

  A client rotates its vector at random (all clients alike), scales it, rounds it at random to
  integers of squared norm at most `squared_norm_bound`, adds its share of discrete Gaussian noise
  and reduces modulo 2^bits. The server takes the sum modulo 2^bits as a number around zero, scales
  it and rotates it back. A sum out of range wraps around, which costs accuracy, never privacy.

  Attributes:
    bits: Bits of each integer, in a report and in the sum.
    num_values: Length of a client's vector.
    noise_multiplier: Minimum standard deviation of the noise in a released sum.
    clients_per_round: r; the range fits r vectors of norm 1.
    num_slots: Maximum number of noise shares in a sum.
    min_reports: Minimum number of noise shares in a released sum.

  Raises:
    ValueError: If `bits` is out of range, or so small that a noise share has a variance under
      8 squared steps: no Gaussian would dominate it.
  """

  bits: int
  num_values: int
  noise_multiplier: float
  clients_per_round: int
  num_slots: int
  min_reports: int

  def __post_init__(self):
    if not isinstance(self.bits, int) or not _MIN_BITS <= self.bits <= _MAX_BITS:
      raise ValueError(
          f'`bits` must be an integer from {_MIN_BITS} to {_MAX_BITS} with integer noise. Found'
          f' {self.bits}.'
      )
    if self.noise_multiplier and self.share_variance < LEAST_SHARE_VARIANCE:
      more_bits = f', or `bits` (at most {_MAX_BITS})' if self.bits < _MAX_BITS else ''
      raise errors.ArgumentError(
          'noise_multiplier',
          'is too small: a noise share must have a variance of at least'
          f' {LEAST_SHARE_VARIANCE:g} squared steps, as the guarantee requires. With {self.bits} bits'
          f' per value it has {self.share_variance:.3g}. Raise it{more_bits}.',
      )

  @property
  def num_integers(self) -> int:
    """Number of integers in a report: even, for the rotation."""
    return self.num_values + self.num_values % 2

  @property
  def modulus(self) -> int:
    return 2**self.bits

  @property
  def value_bound(self) -> float:
    """Largest value of a sum that does not wrap around."""
    noise_stddev = self.noise_multiplier * math.sqrt(self.num_slots / self.min_reports)
    return _RANGE * math.hypot(self.clients_per_round / math.sqrt(self.num_integers), noise_stddev)

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
    return (self.noise_multiplier * self.scale) ** 2 / self.min_reports

  @property
  def statistical_distance(self) -> float:
    """Bound on the total variation distance of a release from one with exact noise."""
    if not self.noise_multiplier:
      return 0.0
    return self.num_slots * self.num_integers * integer_table(self.share_variance).distance


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
  if entries > _MOST_ENTRIES:
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
