"""Tests of the search for the noise, or the rounds, that reach an epsilon."""

import math

import pytest

from fedsmp_tff.privacy import calibration


class TestFindSigma:

  @pytest.mark.parametrize('epsilon', [0.3, 1.0, 7.0])
  @pytest.mark.parametrize('start', [1e-2, 1.0, 1e2])
  def test_search_reaches_the_target_from_any_start(self, epsilon, start):
    sigma = calibration.find_sigma(lambda sigma: 2 / sigma**2, epsilon, start, 1e-2, 1e2)
    assert sigma == pytest.approx(math.sqrt(2 / epsilon), rel=1e-7)

  def test_search_passes_infinite_and_zero_values(self):
    def epsilon_fn(sigma):
      return math.inf if sigma < 0.5 else 0.0 if sigma > 2 else 1 / sigma

    assert calibration.find_sigma(epsilon_fn, 1.0, 0.1, 1e-2, 1e4) == pytest.approx(1.0, rel=1e-7)

  def test_search_stays_in_the_range(self):
    assert calibration.find_sigma(lambda sigma: 1 / sigma, 1e-9, 1.0, 0.5, 9.0) == pytest.approx(9)
    assert calibration.find_sigma(lambda sigma: 1 / sigma, 1e9, 1.0, 0.5, 9.0) == pytest.approx(0.5)


@pytest.mark.parametrize('each, most', [(2.0, 0), (0.1, 12), (1.25, 1), (0.0, 10**6)])
def test_max_rounds_is_the_largest_number_that_fits(each, most):
  assert calibration.max_rounds(lambda rounds: each * rounds, 1.25) == most
