"""Tests of epsilon by privacy loss distributions against our own integration."""

import math

import numpy as np
import pytest
from scipy import stats

from fedsmp_tff import privacy_loss

# The grid of losses: its width in all is far more than losses add up to here.
_STEP, _SIZE = 2e-5, 2**22


def _loss(x, sigma, q, means):
  """Log of P's density over Q's; each (1 - q) N(0) + q N(mean) or N(0) if None."""
  def log_ratio(mean):  # To N(0).
    if mean is None:
      return np.zeros_like(x)
    return np.logaddexp(
        math.log1p(-q) if q < 1 else -np.inf,
        math.log(q) + (2 * mean * x - mean**2) / (2 * sigma**2),
    )

  return log_ratio(means[0]) - log_ratio(means[1])


def _epsilon(sigma, q, rounds, delta, means, up):
  """Composed by FFT; `up` rounds each round's loss up, so that epsilon is no less."""
  x = np.linspace(-14 * sigma - 2, 14 * sigma + 2, 2_000_001)
  p_mean = means[0]
  cdf = (1 - q) * stats.norm.cdf(x, 0, sigma) if p_mean is not None else (
      stats.norm.cdf(x, 0, sigma)
  )
  if p_mean is not None:
    cdf += q * stats.norm.cdf(x, p_mean, sigma)
  mass = np.diff(cdf)
  loss = _loss(x, sigma, q, means)
  ends = np.stack([loss[:-1], loss[1:]])
  index = np.ceil(ends.max(axis=0) / _STEP) if up else np.floor(ends.min(axis=0) / _STEP)
  index = index.astype(np.int64)
  assert np.abs(index).max() < _SIZE // 2
  pmf = np.bincount(index % _SIZE, mass, _SIZE)
  composed = np.fft.irfft(np.fft.rfft(pmf) ** rounds, _SIZE)
  losses = _STEP * np.fft.fftshift(np.fft.fftfreq(_SIZE, 1 / _SIZE))
  composed = np.fft.fftshift(composed)

  def delta_of(epsilon):
    above = losses > epsilon
    return np.sum(composed[above] * -np.expm1(epsilon - losses[above]))

  low, high = 0.0, losses[-1]
  while high - low > 1e-6:
    middle = (low + high) / 2
    low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
  return high


# In units of the sensitivity C: the pairs that the module's docstring names.
_PAIRS = {
    privacy_loss.poisson: (1.0, [(1.0, None), (None, 1.0)]),
    privacy_loss.fixed_size: (1.0, [(2.0, -2.0)]),
    privacy_loss.fixed_size_lower: (1.0, [(2.0, None), (None, 2.0)]),
}


class TestExecution:

  @pytest.mark.parametrize('function', _PAIRS)
  @pytest.mark.parametrize(
      'sigma, q, rounds, delta',
      [(1.4, 1 / 60, 180, 6000**-1.1), (1.0, 0.005, 40, 1e-5), (3.0, 0.2, 25, 1e-3)],
  )
  def test_it_is_what_integration_gives(self, function, sigma, q, rounds, delta):
    _, pairs = _PAIRS[function]
    low, high = (
        max(_epsilon(sigma, q, rounds, delta, means, up) for means in pairs)
        for up in (False, True)
    )
    # Rounding moves the sum of losses by at most a step a round, either way.
    assert 0 <= high - low <= 2.5 * rounds * _STEP
    got = function(sigma, q, rounds, delta)
    if function is privacy_loss.fixed_size_lower:
      # A lower bound: on its own, coarser grid.
      assert high - rounds * 1.1e-4 <= got <= high
    else:
      assert low <= got <= high + 2e-3

  def test_without_sampling_it_is_the_gaussian_mechanism(self):
    # Balle and Wang 2018, Theorem 8; rounds add up to one of sigma / sqrt(T).
    sigma, rounds, delta = 4.0, 9, 1e-4

    def delta_of(epsilon, mu):
      return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
          -mu / 2 - epsilon / mu
      )

    for function, sensitivity in (
        (privacy_loss.poisson, 1), (privacy_loss.fixed_size, 2)
    ):
      epsilon = function(sigma, 1.0, rounds, delta)
      mu = sensitivity * math.sqrt(rounds) / sigma
      assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-2)
