"""Kinds of noise, the size of a client's share, and tables of integer noise; NumPy alone.

Shares of all clients add up to the mechanism's noise. `noise_shares` draws them.
"""

import decimal
import functools
import math
from typing import NamedTuple

import numpy as np

GAUSSIAN = 'gaussian'
DISCRETE_GAUSSIAN = 'discrete_gaussian'
KINDS = (GAUSSIAN, DISCRETE_GAUSSIAN)

_DIGITS = 60
# What lies beyond the ends of a table, on each side, is below this.
_TAIL = decimal.Decimal(2) ** -80
_MOST_ENTRIES = 2**18


def share_stddev(noise_stddev: float, num_shares: int) -> float:
  """Standard deviation of one client's noise on one kept value: C sigma / sqrt(r).

  Algorithm 1, last line of DP-spar: N(0, C^2 sigma^2 / r) a coordinate. The sum
  of r such shares is N(0, C^2 sigma^2): the Gaussian mechanism of Lemma 3 for a
  sum of sensitivity C.

  >>> round(share_stddev(noise_stddev=1.4, num_shares=100), 3)
  0.14

  Args:
    noise_stddev: Standard deviation of the noise of the sum: C sigma.
    num_shares: The fewest shares that a released sum has: r, where all report.
  """
  return noise_stddev / math.sqrt(num_shares)


class IntegerTable(NamedTuple):
  """Cumulative probabilities of a distribution of integers, 128 bits each.

  Attributes:
    lowest: The smallest integer.
    high: The upper 64 bits, less 2^63, int64[num - 1], ascending.
    low: The lower 64 bits, less 2^63, int64[num - 1].
    distance: An upper bound of the total variation distance between a draw and the
      distribution, given random bits.
  """

  lowest: int
  high: np.ndarray
  low: np.ndarray
  distance: float


@functools.lru_cache(maxsize=8)
def integer_table(variance: float) -> IntegerTable:
  """The table of discrete Gaussian noise from which `noise_shares.integer_share` draws.

  Args:
    variance: Positive; probabilities are proportional to exp(-x^2 / (2 variance)).

  Raises:
    ValueError: If the table would have over 2^18 integers.
  """
  entries = 2 * _tail_start(math.sqrt(variance))
  if entries > _MOST_ENTRIES:
    raise ValueError(
        f'Integer noise of standard deviation {math.sqrt(variance):.4g} a client is too'
        ' wide to draw exactly; lower `bits`.'
    )
  with decimal.localcontext(decimal.Context(prec=_DIGITS)):
    weights = _weights(decimal.Decimal(variance), entries // 2)
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
  # Of the thresholds that share their upper half, only the first is distinguished from it.
  distance = (
      float(tail / total) + np.count_nonzero(times > 1) * 2.0**-64 + len(high) * 2.0**-128
  )
  return IntegerTable(1 - len(weights), high, low, distance)


def _tail_start(stddev: float) -> int:
  """Returns an integer beyond which the probability is negligible."""
  return math.ceil(12 * stddev) + 40


def _weights(variance, num):
  """exp(-x^2 / (2 variance)) at x = 0 ... num."""
  ratio = (-1 / (2 * variance)).exp()
  step = (-1 / variance).exp()
  weights = [decimal.Decimal(1)]
  for _ in range(num):
    weights.append(weights[-1] * ratio)
    ratio *= step
  return weights
