"""Tests of amplification by sampling against Gaussian noise and against exact divergences."""

import math

import dp_accounting
from dp_accounting import rdp
import numpy as np
import pytest
from scipy import special

from fedsmp_tff.privacy import rdp as rdp_lib

_ORDERS = (2, 3, 5, 8, 16, 32)


def _gaussian(sigma):
  return lambda order: order / (2 * sigma**2)


def _divergence(p, q, order):
  """Of two distributions on the same integers."""
  log_terms = order * np.log(p) + (1 - order) * np.log(q)
  return special.logsumexp(log_terms) / (order - 1)


class TestExecution:

  @pytest.mark.parametrize('sigma, q', [(1.4, 1 / 60), (0.5, 0.2), (4.0, 0.9), (2.0, 1.0)])
  def test_of_gaussian_noise_it_is_dp_accounting_s(self, sigma, q):
    event = dp_accounting.GaussianDpEvent(sigma)
    if q < 1:
      event = dp_accounting.PoissonSampledDpEvent(q, event)
    expected = rdp.RdpAccountant(_ORDERS).compose(event).rdp
    np.testing.assert_allclose(
        rdp_lib.poisson(_gaussian(sigma), q, _ORDERS), expected, rtol=1e-9
    )

  @pytest.mark.parametrize('sigma, n, r', [(1.4, 6000, 100), (1.0, 50, 10), (30.0, 1000, 10)])
  def test_of_a_fixed_number_it_is_the_theorem(self, sigma, n, r):
    # Wang, Balle, Kasiviswanathan 2019, Theorem 9, added up as it is written there.
    curve, rate = _gaussian(sigma), r / n
    expected = []
    for order in _ORDERS:
      total = 1 + rate**2 * math.comb(order, 2) * min(
          4 * math.expm1(curve(2)), 2 * math.exp(curve(2))
      )
      for j in range(3, order + 1):
        total += rate**j * math.comb(order, j) * 2 * math.exp((j - 1) * curve(j))
      expected.append(math.log(total) / (order - 1))
    found = rdp_lib.fixed(curve, rate, _ORDERS)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    # dp-accounting's takes the noise to be Gaussian, so it may say less, never more.
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        n, r, dp_accounting.GaussianDpEvent(sigma)
    )
    accountant = rdp.RdpAccountant(
        _ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE
    ).compose(event)
    assert np.all(accountant.rdp <= found * (1 + 1e-9))
    np.testing.assert_allclose(rdp_lib.fixed(curve, 1.0, (3,)), [curve(3)])

  @pytest.mark.parametrize('q', [0.01, 0.3])
  def test_it_bounds_both_directions_for_integer_noise(self, q):
    # Laplace-like noise on the integers: nothing Gaussian about it.
    x = np.arange(-200, 201)
    base = np.exp(-np.abs(x) / 3.0)
    base /= base.sum()
    moved = np.roll(base, 4)
    def curve(order):
      return _divergence(moved, base, order)

    mixture = (1 - q) * base + q * moved
    for order, bound in zip(_ORDERS, rdp_lib.poisson(curve, q, _ORDERS)):
      # Ends wrap around here by under 1e-28; the expansion is exact.
      assert _divergence(mixture, base, order) == pytest.approx(bound, rel=1e-6)
      assert _divergence(base, mixture, order) <= bound * (1 + 1e-9)
