"""Finds the noise, or the number of rounds, that reaches an epsilon."""

import bisect
from collections.abc import Callable
import math

from scipy import optimize

MOST_ROUNDS = 10**6
_SMALL_EPSILON, _LARGE_EPSILON = 1e-9, 1e6  # For 0 and infinity, which have no logarithm.
_FIRST_WIDTH, _TOLERANCE = 0.25, 1e-8  # In log sigma.
_MAX_STEPS = 20
# A step of this size leaves a thousandth of it as error: the slopes on both grids are that close.
_LAST_STEP = 1e-4


def find_sigma(
    epsilon_fn: Callable[[float], float], epsilon: float, start: float, low: float, high: float
) -> float:
  """Returns the noise multiplier in [low, high] whose epsilon is nearest to a target.

  Uses Brent's method on logarithms, in which epsilon is nearly linear.

  Args:
    epsilon_fn: Maps a noise multiplier to epsilon; decreasing.
    epsilon: The target.
    start: Noise multiplier in the range, from which the search begins.
    low: Smallest noise multiplier.
    high: Largest noise multiplier.
  """
  excess = _excess(epsilon_fn, epsilon)
  least, most = math.log(low), math.log(high)
  below = above = math.log(start)
  width = _FIRST_WIDTH
  while below > least and excess(below) <= 0:
    above, below, width = below, max(least, below - width), 2 * width
  while above < most and excess(above) > 0:
    below, above, width = above, min(most, above + width), 2 * width
  if excess(below) <= 0:
    return low
  if excess(above) > 0:
    return high
  return math.exp(optimize.brentq(excess, below, above, xtol=_TOLERANCE))


def refine_sigma(
    epsilon_fn: Callable[[float], float],
    fast_epsilon_fn: Callable[[float], float],
    epsilon: float,
    start: float,
    low: float,
    high: float,
) -> float:
  """Returns the noise multiplier whose epsilon is nearest to a target, in few evaluations.

  Takes steps with the slope of a fast function; calls `find_sigma` if they do not converge.

  Args:
    epsilon_fn: Maps a noise multiplier to epsilon, slowly.
    fast_epsilon_fn: Nearly the same function, evaluated faster; its slope is used.
    epsilon: The target.
    start: A noise multiplier at which `fast_epsilon_fn` is near the target.
    low: See `find_sigma`.
    high: See `find_sigma`.
  """
  excess, fast_excess = _excess(epsilon_fn, epsilon), _excess(fast_epsilon_fn, epsilon)
  x = math.log(start)
  slope = (fast_excess(x + _LAST_STEP) - fast_excess(x)) / _LAST_STEP
  for _ in range(_MAX_STEPS if slope < 0 else 0):
    step = max(-1.0, min(1.0, excess(x) / slope))
    x -= step
    if abs(step) < _LAST_STEP:
      return math.exp(x)
  return find_sigma(epsilon_fn, epsilon, start, low, high)


def most_rounds(epsilon_fn: Callable[[int], float], epsilon: float) -> int:
  """Returns the largest number of rounds, up to a million, within a target.

  Args:
    epsilon_fn: Maps a number of rounds to epsilon; increasing.
    epsilon: The target, at least `epsilon_fn(0)`.
  """
  high = 1
  while high < MOST_ROUNDS and epsilon_fn(high) <= epsilon:
    high = min(2 * high, MOST_ROUNDS)
  return bisect.bisect_right(range(high + 1), epsilon, lo=high // 2, key=epsilon_fn) - 1


def _excess(epsilon_fn: Callable[[float], float], epsilon: float) -> Callable[[float], float]:
  """Returns a function from log sigma to log(epsilon / target)."""
  return lambda x: math.log(
      min(max(epsilon_fn(math.exp(x)), _SMALL_EPSILON), _LARGE_EPSILON) / epsilon
  )
