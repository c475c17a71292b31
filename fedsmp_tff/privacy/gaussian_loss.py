"""The privacy loss of one round of Gaussian noise, on a grid, 30 times as fast as dp-accounting.

dp-accounting inverts the loss in Python at each of up to a million grid points: 5 s for the paper's
Shakespeare. This module has the same formulas on arrays; tails and the construction of the
distribution are dp-accounting's.
"""

import math

from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_mechanism
import numpy as np

Adjacency = privacy_loss_mechanism.AdjacencyType


def distribution(
    noise_multiplier: float, sampling_rate: float, adjacency: Adjacency, step: float
) -> pld_pmf.PLDPmf:
  """Returns an upper bound of the loss of a sum of sensitivity 1, by Connect the Dots.

  Args:
    noise_multiplier: sigma, positive.
    sampling_rate: q in (0, 1].
    adjacency: ADD or REMOVE: the pair N(0, sigma^2) and (1 - q) N(0, sigma^2) + q N(1, sigma^2),
      in either order; REPLACE: those mixtures with means 1 and -1.
    step: Step of the grid.
  """
  loss = _GaussianLoss(noise_multiplier, sampling_rate, adjacency)
  bounds = loss.connect_dots_bounds()
  low = math.floor(bounds.epsilon_lower / step)
  high = math.ceil(bounds.epsilon_upper / step)
  deltas = loss.get_delta_for_epsilon(np.arange(low, high + 1) * step)
  pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, deltas)
  # A sparse one computes size^T to choose how to compose T rounds: minutes for millions of them.
  return pmf.to_dense_pmf()


class _GaussianLoss(privacy_loss_mechanism.GaussianPrivacyLoss):
  """dp-accounting's loss, with `get_delta_for_epsilon` as operations on arrays."""

  def __init__(self, noise_multiplier: float, sampling_rate: float, adjacency: Adjacency):
    super().__init__(noise_multiplier, sampling_prob=sampling_rate, adjacency_type=adjacency)
    self._variance = noise_multiplier**2

  def get_delta_for_epsilon(self, epsilon: np.ndarray) -> np.ndarray:
    """Returns delta, the hockey-stick divergence, at each epsilon, float64[N]."""
    q = self.sampling_prob
    deltas = np.zeros_like(epsilon)
    inside = np.full_like(epsilon, True, dtype=bool)
    # A client who is not sampled bounds the loss.
    if q < 1 and self.adjacency_type == Adjacency.ADD:
      inside = epsilon < -math.log1p(-q)
    elif q < 1 and self.adjacency_type == Adjacency.REMOVE:
      inside = epsilon > math.log1p(-q)
      deltas[~inside] = -np.expm1(epsilon[~inside])
    x = self._where_loss_is(epsilon[inside])
    deltas[inside] = self.mu_upper_cdf(x) - np.exp(epsilon[inside] + self.mu_lower_log_cdf(x))
    return np.clip(deltas, 0, 1)

  def _where_loss_is(self, epsilon: np.ndarray) -> np.ndarray:
    """Returns the largest x at which the loss is epsilon; see `inverse_privacy_loss`."""
    q, variance = self.sampling_prob, self._variance
    if self.adjacency_type == Adjacency.REPLACE:
      if q == 1:
        return -epsilon * variance / 2
      log_alpha = 0.5 / variance + math.log1p(-q) - math.log(q)
      half = np.abs(epsilon) / 2
      log_sinh = log_alpha + half + _log(-np.expm1(-2 * half) / 2)
      asinh = np.logaddexp(0.5 * np.logaddexp(0, 2 * log_sinh), log_sinh)
      return -variance * (np.sign(epsilon) * asinh + epsilon / 2)
    sign = 1 if self.adjacency_type == Adjacency.REMOVE else -1
    loss = epsilon
    if q < 1:  # The loss without sampling, log(1 + (e^epsilon - 1) / q), and its mirror image.
      top, bottom = sign * epsilon - math.log(q), math.log(1 / q - 1)
      loss = sign * (top + _log(-np.expm1(bottom - top)))
    return -sign * 0.5 - loss * variance


def _log(x: np.ndarray) -> np.ndarray:
  """Returns the logarithm, -inf where rounding leaves nothing."""
  with np.errstate(divide='ignore'):
    return np.log(np.maximum(x, 0))
