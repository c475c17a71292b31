"""Tests of the search for the noise, or the rounds, that reach an epsilon."""

import math

import pytest

from fedsmp_tff.privacy import calibration


class TestFindSigma:

  @pytest.mark.parametrize('epsilon', [0.3, 1.0, 7.0])
  @pytest.mark.parametrize('start', [1e-2, 1.0, 1e2])
  def test_it_reaches_the_target_from_any_start(self, epsilon, start):
    sigma = calibration.find_sigma(lambda sigma: 2 / sigma**2, epsilon, start, 1e-2, 1e2)
    assert sigma == pytest.approx(math.sqrt(2 / epsilon), rel=1e-7)

  def test_infinite_and_zero_values_are_no_obstacle(self):
    def epsilon_fn(sigma):
      return math.inf if sigma < 0.5 else 0.0 if sigma > 2 else 1 / sigma

    assert calibration.find_sigma(epsilon_fn, 1.0, 0.1, 1e-2, 1e4) == pytest.approx(1.0, rel=1e-7)

  def test_it_stays_in_the_range(self):
    assert calibration.find_sigma(lambda sigma: 1 / sigma, 1e-9, 1.0, 0.5, 9.0) == pytest.approx(9)
    assert calibration.find_sigma(lambda sigma: 1 / sigma, 1e9, 1.0, 0.5, 9.0) == pytest.approx(0.5)


def test_a_fast_function_saves_evaluations_of_the_slow_one():
  sigmas = []

  def epsilon_fn(sigma):
    sigmas.append(sigma)
    return 2 / sigma**1.7

  start = (1.98 / 0.5) ** (1 / 1.7)  # The fast function is 1 % below it.
  sigma = calibration.refine_sigma(epsilon_fn, lambda s: 1.98 / s**1.7, 0.5, start, 0.01, 100)
  assert sigma == pytest.approx((2 / 0.5) ** (1 / 1.7), rel=1e-7) and len(sigmas) <= 3


@pytest.mark.parametrize('fast_epsilon_fn', [lambda sigma: 1.0, lambda sigma: 9 / sigma**0.01])
def test_a_fast_function_of_no_use_does_no_harm(fast_epsilon_fn):
  sigma = calibration.refine_sigma(lambda s: 2 / s**2, fast_epsilon_fn, 0.5, 1.0, 1e-2, 1e4)
  assert sigma == pytest.approx(2.0, rel=1e-7)


@pytest.mark.parametrize('each, most', [(2.0, 0), (0.1, 12), (1.25, 1), (0.0, 10**6)])
def test_the_most_rounds_are_all_that_fit(each, most):
  assert calibration.most_rounds(lambda rounds: each * rounds, 1.25) == most
