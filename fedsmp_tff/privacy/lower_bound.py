"""The epsilon below which no accountant may go, with exactly r of n clients a round.

Two populations are that far apart: one client sends +C in a population and -C in its
neighbour, all others -C. In units of C sigma, its rounds are N(0, 1) against
(1 - q) N(0, 1) + q N(2 / sigma, 1), in both directions.

Losses are rounded to the nearest number of a grid and composed there. What rounding takes
away in a round is within half a step and has a mean that is known; how far the sum over rounds
falls below its mean is Hoeffding's inequality, and the probability that it falls further counts as
delta. So the error grows with the square root of the rounds, not with the rounds.
"""

from collections.abc import Sequence
import math

from dp_accounting.pld import pld_pmf
import numpy as np
from scipy import stats

# Of a grid, for one round and for all.
_POINTS = 2**19
# Standard deviations of noise that are looked at, and of the composed loss on the grid.
_NOISE_TAIL, _LOSS_TAIL = 9.0, 8.0
_NODES = 20_001
# The part of delta that rounding may fail with, and what dp-accounting cuts from tails.
_FAILURE, _TRUNCATION = 1e-3, 2e-15


def fixed(rounds: Sequence[tuple[float, float, int]], delta: float) -> float:
  """Returns a lower bound of epsilon.

  Args:
    rounds: Each a noise multiplier sigma, positive; a sampling rate r / n; and how many
      there are of it, at least one.
    delta: In (0, 1).
  """
  return max(0.0, *(_epsilon(rounds, delta, added) for added in (False, True)))


def _epsilon(rounds, delta: float, added: bool) -> float:
  pairs = [_Pair(2 / sigma, rate, added) for sigma, rate, _ in rounds]
  nums = [num for *_, num in rounds]
  total = sum(nums)
  variance = sum(num * pair.variance for pair, num in zip(pairs, nums))
  step = max(
      2 * _LOSS_TAIL * math.sqrt(variance), *(np.ptp(pair.range) for pair in pairs)
  ) / _POINTS
  composed, rounding = None, 0.0
  for pair, num in zip(pairs, nums):
    one, mean = pair.on_grid(step)
    one = one.self_compose(num)
    composed = one if composed is None else composed.compose(one)
    rounding += num * mean
  rounding -= step * math.sqrt(total * math.log(1 / (_FAILURE * delta)) / 2)
  allowed = (1 + _FAILURE) * delta + _TRUNCATION * len(pairs)
  return float(composed.get_epsilon_for_delta(allowed)) + rounding


class _Pair:
  """N(0, 1) and (1 - q) N(0, 1) + q N(shift, 1), and the loss of one against the other.

  Attributes:
    range: The smallest loss and the largest, within the tails.
    variance: Of the loss.
  """

  def __init__(self, shift: float, rate: float, added: bool):
    """Initializes; `added` for N(0, 1) against the mixture, else the mixture against it."""
    self._shift = shift
    self._rate = rate
    self._sign = -1 if added else 1
    self._ends = -_NOISE_TAIL, shift + _NOISE_TAIL
    nodes = np.linspace(*self._ends, _NODES)
    losses = self._sign * np.log1p(rate * np.expm1(shift * nodes - shift**2 / 2))
    if rate == 1:
      losses = self._sign * (shift * nodes - shift**2 / 2)
    density = stats.norm.pdf(nodes)
    if not added:
      density = (1 - rate) * density + rate * stats.norm.pdf(nodes - shift)
    density *= nodes[1] - nodes[0]
    # Trapezoids, which for what vanishes at both ends err by less than any power of their width.
    self._mean = losses @ density
    self.variance = (losses - self._mean) ** 2 @ density
    self.range = losses.min(), losses.max()

  def on_grid(self, step: float) -> tuple[pld_pmf.DensePLDPmf, float]:
    """Returns the losses rounded to a grid, and the mean of a loss less the rounded one."""
    lowest, highest = (round(end / step) for end in self.range)
    numbers = np.arange(lowest, highest + 1)
    halves = np.append(numbers, highest + 1) - 0.5
    noise = np.clip(self._noise_at(self._sign * halves * step), *self._ends)
    cumulative = stats.norm.cdf(noise)
    if self._sign > 0:
      cumulative *= 1 - self._rate
      cumulative += self._rate * stats.norm.cdf(noise - self._shift)
    masses = np.abs(np.diff(cumulative))
    mean = self._mean - step * (numbers @ masses)
    return pld_pmf.DensePLDPmf(step, lowest, masses, 0.0, False), mean

  def _noise_at(self, losses: np.ndarray) -> np.ndarray:
    """Returns where the mixture's density over N(0, 1)'s has these logarithms."""
    if self._rate == 1:
      logs = losses
    else:
      with np.errstate(divide='ignore', invalid='ignore', over='ignore'):
        ratio = np.maximum(np.expm1(losses) / self._rate, -1.0)
        logs = np.where(
            losses > 600, losses - math.log(self._rate), np.log1p(ratio)
        )
    return logs / self._shift + self._shift / 2
