"""Finds the parameter that reaches an epsilon, by dp-accounting's search."""

from collections.abc import Callable
import dataclasses
from typing import Any

import dp_accounting

MOST_ROUNDS = 10**6
# Replaces infinity, which a root finder cannot use.
_LARGE_EPSILON = 1e6


@dataclasses.dataclass(frozen=True)
class _Parameter(dp_accounting.DpEvent):
  """An event with a parameter and nothing else."""

  value: float


class _Accountant(dp_accounting.PrivacyAccountant):
  """Looks up epsilon by the parameter of the event, for dp-accounting's calibration."""

  def __init__(self, epsilon_fn: Callable[[float], float]):
    super().__init__(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)  # Not asked for.
    self._epsilon_fn = epsilon_fn
    self._parameter = None

  def _maybe_compose(self, event, count, do_compose):
    self._parameter = event.value

  def get_epsilon(self, target_delta: float) -> float:
    return min(self._epsilon_fn(self._parameter), _LARGE_EPSILON)


def calibrate(
    epsilon_fn: Callable[[float], float], epsilon: float, low: float, high: float, **options: Any
) -> float:
  """Returns the parameter whose epsilon is nearest to a target, and not above it.

  >>> round(calibrate(lambda sigma: 1 / sigma, 4.0, 0.1, 1.0), 4)
  0.25

  Args:
    epsilon_fn: Maps a parameter to epsilon; monotone.
    epsilon: The target.
    low: A parameter on one side of the result.
    high: A parameter on the other side.
    **options: `tol` or `discrete` of `dp_accounting.calibrate_dp_mechanism`.
  """
  return dp_accounting.calibrate_dp_mechanism(
      lambda: _Accountant(epsilon_fn),
      _Parameter,
      epsilon,
      0.0,  # `epsilon_fn` knows delta.
      dp_accounting.ExplicitBracketInterval(low, high),
      **options,
  )


def most_rounds(epsilon_fn: Callable[[int], float], epsilon: float) -> int:
  """Returns the largest number of rounds, up to a million, within a target.

  >>> most_rounds(lambda rounds: 0.1 * rounds, 1.25)
  12

  Args:
    epsilon_fn: Maps a number of rounds to epsilon; monotone.
    epsilon: The target, at least that of 0 rounds.
  """
  low, high = 0, 1
  while epsilon_fn(high) <= epsilon:
    if high == MOST_ROUNDS:
      return high
    low, high = high, min(2 * high, MOST_ROUNDS)
  return calibrate(epsilon_fn, epsilon, low, high, discrete=True)
