"""Tests of Rényi divergences where rounding would make them zero or negative."""

import math

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import special

from fedsmp_tff.privacy import divergences

_many = hypothesis.settings(derandomize=True, deadline=None, max_examples=60, database=None)


def _divergence(order, rate, sigma):
  """Of the mixture from N(0, sigma^2), for integer orders.

  E[(1 + q (e^L - 1))^alpha] - 1 is a sum of positive terms over i >= 2, so that nothing cancels.
  """
  i = np.arange(2, order + 1)
  exponent = (i * i - i) / (2 * sigma**2)
  log_terms = (
      special.gammaln(order + 1) - special.gammaln(i + 1) - special.gammaln(order - i + 1)
      + i * math.log(rate) + (order - i) * math.log1p(-rate)
      + exponent + np.log(-np.expm1(-exponent))
  )
  return np.logaddexp(0, special.logsumexp(log_terms)) / (order - 1)


class TestPoisson:

  @_many
  @hypothesis.given(
      st.floats(-0.5, 4), st.floats(-9, -0.01), st.sampled_from([2, 3, 8, 32, 63, 256, 1024])
  )
  def test_divergence_bounds_tiny_rates_and_large_noise(
      self, log_sigma, log_rate, order
  ):
    n = 10**12
    r = round(n * 10**log_rate)
    expected = _divergence(order, r / n, 10**log_sigma)
    got = divergences.poisson(order, n, r, n, 10**log_sigma)
    assert expected * (1 - 1e-9) < got < expected * (1 + 1e-6) + 2e-10 / (order - 1)

  def test_fractional_orders_lie_between_integer_orders(self):
    # A divergence grows with its order.
    for sigma, rate in ((1000.0, 1e-8), (5.0, 1e-6), (300.0, 1e-3)):
      n = 10**12
      got = [divergences.poisson(a, n, round(rate * n), n, sigma) for a in (3, 3.5, 4)]
      low, high = _divergence(3, rate, sigma), _divergence(4, rate, sigma)
      assert low < got[1] < high + 1e-10

  def test_slots_have_a_positive_divergence(self):
    # The exact mixture: with n = 10^9 and r = 10, 13 slots overflow often.
    n, r, num_slots, sigma, order = 10**9, 10, 13, 1000.0, 64
    full = divergences.probability_of_more(num_slots - 1, n - 1, r / n)
    power = order - 1
    plain = power * _divergence(order, r / n, sigma)
    replaced = power * _divergence(order, r / n * num_slots / (num_slots + 1), sigma / 2)
    expected = math.log1p((1 - full) * math.expm1(plain) + full * math.expm1(replaced)) / power
    assert full > 0.1 and expected < divergences.poisson(order, n, r, num_slots, sigma) < 1e-11


@pytest.mark.parametrize('order', [2, 16, 64, 300])
def test_fixed_size_is_not_below_the_first_term(order):
  # Wang, Balle, Kasiviswanathan 2019, Theorem 9: all terms are positive.
  n, r, sigma = 10**9, 3, 9000.0
  first = math.expm1(4 / sigma**2) * 4 * (r / n) ** 2 * math.comb(order, 2)
  assert math.log1p(first) / (order - 1) < divergences.fixed(order, n, r, sigma) < 1e-9


def test_a_diverging_series_is_infinite_without_warning(caplog):
  assert divergences.poisson(1.6, 200, 20, 200, 0.472367) == math.inf
  assert not caplog.records
