"""Finds the noise, or the number of rounds, that reaches an epsilon."""

import bisect
from collections.abc import Callable
import math

from scipy import optimize

MAX_ROUNDS = 10**6
_SMALL_EPSILON, _LARGE_EPSILON = 1e-9, 1e6  # For 0 and infinity, which have no logarithm.
_FIRST_WIDTH = 0.25  # In log sigma.


def find_sigma(
    epsilon_fn: Callable[[float], float], epsilon: float, start: float, low: float, high: float,
    tolerance: float = 1e-8,
) -> float:
  """Returns the noise multiplier in [low, high] whose epsilon is nearest to a target.

  Uses Brent's method on logarithms, in which epsilon is nearly linear.

  Args:
    epsilon_fn: Maps a noise multiplier to epsilon; decreasing.
    epsilon: The target.
    start: Noise multiplier in the range, from which the search begins.
    low: Smallest noise multiplier.
    high: Largest noise multiplier.
    tolerance: Relative error of the noise multiplier.
  """
  excess = _excess(epsilon_fn, epsilon)
  lowest, highest = math.log(low), math.log(high)
  below = above = math.log(start)
  width = _FIRST_WIDTH
  while below > lowest and excess(below) <= 0:
    above, below, width = below, max(lowest, below - width), 2 * width
  while above < highest and excess(above) > 0:
    below, above, width = above, min(highest, above + width), 2 * width
  if excess(below) <= 0:
    return low
  if excess(above) > 0:
    return high
  return math.exp(optimize.brentq(excess, below, above, xtol=tolerance))


def max_rounds(epsilon_fn: Callable[[int], float], epsilon: float) -> int:
  """Returns the largest number of rounds, up to a million, within a target.

  Args:
    epsilon_fn: Maps a number of rounds to epsilon; increasing.
    epsilon: The target, at least `epsilon_fn(0)`.
  """
  high = 1
  while high < MAX_ROUNDS and epsilon_fn(high) <= epsilon:
    high = min(2 * high, MAX_ROUNDS)
  return bisect.bisect_right(range(high + 1), epsilon, lo=high // 2, key=epsilon_fn) - 1


def _excess(epsilon_fn: Callable[[float], float], epsilon: float) -> Callable[[float], float]:
  """Returns a function from log sigma to log(epsilon / target)."""
  return lambda x: math.log(
      min(max(epsilon_fn(math.exp(x)), _SMALL_EPSILON), _LARGE_EPSILON) / epsilon
  )
