"""Tests of amplification by sampling against Gaussian noise and against exact divergences."""

import dataclasses
import math

import dp_accounting
from dp_accounting import rdp
import numpy as np
import pytest
from scipy import signal
from scipy import special

from fedsmp_tff.mechanism import lattice as lattice_lib
from fedsmp_tff.privacy import rdp as rdp_lib
from tests.support import integer_noise

_ORDERS = (2, 3, 5, 8, 16, 32)
_KINDS = ('discrete_gaussian', 'skellam')


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


def _lattice(kind='skellam', num_values=64, bits=16, sigma=0.0, r=4, **options):
  options = dict(dict(seats=r, min_reporting=r), **options)
  return lattice_lib.Lattice(kind, num_values, bits, sigma, r, **options)


class TestBounds:
  """The published divergences against exact ones, where all can be added up."""

  @pytest.mark.parametrize('kind', _KINDS)
  @pytest.mark.parametrize('bits, sigma, shares', [(8, 0.4, 4), (8, 1.5, 3), (9, 0.7, 6)])
  @pytest.mark.parametrize('moved', [1, 2])
  def test_they_bound_what_a_sum_of_shares_gives_away(
      self, kind, bits, sigma, shares, moved
  ):
    lattice = _lattice(
        kind, num_values=1, bits=bits, sigma=sigma, r=shares, rotate=False
    )
    shift = moved * math.isqrt(lattice.squared_norm_bound)
    share = integer_noise.probabilities(kind, lattice.share_variance, np.arange(-400, 401))
    total = share
    for _ in range(shares - 1):
      total = signal.convolve(total, share, method='direct')
    there = np.zeros(len(total) + shift)
    here = there.copy()
    here[: len(total)], there[shift:] = total, total
    both = (here > 1e-200) & (there > 1e-200)
    curve = rdp_lib.curve_of(lattice, moved)
    for order in (2, 3, 5):
      log_terms = order * np.log(there[both]) + (1 - order) * np.log(here[both])
      exact = special.logsumexp(log_terms) / (order - 1)
      # The rounded vector is at most as long as the bound's square root.
      ratio = moved * math.sqrt(lattice.squared_norm_bound) / shift
      assert exact <= curve(order) * (1 + 1e-9)
      assert curve(order) < 1.8 * ratio**2 * exact
    mixture = 0.9 * here + 0.1 * there
    for order, bound in zip((2, 4), rdp_lib.poisson(curve, 0.1, (2, 4))):
      for p, q in ((mixture, here), (here, mixture)):
        log_terms = order * np.log(p[both]) + (1 - order) * np.log(q[both])
        assert special.logsumexp(log_terms) / (order - 1) <= bound * (1 + 1e-9)

  @pytest.mark.parametrize('kind', _KINDS)
  def test_more_is_never_less_private(self, kind):
    lattice = _lattice(kind, sigma=1.0)
    curve, order = rdp_lib.curve_of(lattice, 1), 8

    def changed(order, **changes):
      return rdp_lib.curve_of(dataclasses.replace(lattice, **changes), 1)(order)

    assert changed(order, noise_multiplier=1.1) < curve(order)
    assert changed(order, bits=18) < curve(order)
    assert rdp_lib.curve_of(lattice, 2)(order) > 3.9 * curve(order)
    assert changed(2, noise_multiplier=0.0) == math.inf

  def test_small_shares_are_no_discrete_gaussian_any_more(self):
    # A share of variance under 1: the sum's excess is charged, not waved through.
    coarse = _lattice('discrete_gaussian', num_values=64, bits=8, sigma=0.5, r=64)
    assert coarse.share_variance < 0.5
    gaussian = 4 * coarse.squared_norm_bound / (2 * coarse.share_variance * 64)
    assert rdp_lib.curve_of(coarse, 1)(4) > 1.5 * gaussian
