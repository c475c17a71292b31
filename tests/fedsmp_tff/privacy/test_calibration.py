"""Tests of the search for a parameter that reaches an epsilon."""

import math

import pytest

from fedsmp_tff.privacy import calibration


class TestCalibrate:

  @pytest.mark.parametrize('epsilon', [0.3, 1.0, 7.0])
  def test_it_is_near_the_target_and_never_above_it(self, epsilon):
    def epsilon_fn(sigma):
      return 2 / sigma**2

    sigma = calibration.calibrate(epsilon_fn, epsilon, 1e-2, 1e2, tol=1e-9)
    assert epsilon_fn(sigma) <= epsilon
    assert sigma == pytest.approx(math.sqrt(2 / epsilon), abs=2e-9)

  @pytest.mark.parametrize('each, most', [(2.0, 0), (0.1, 12), (1.25, 1), (0.0, 10**6)])
  def test_the_most_rounds_are_all_that_fit(self, each, most):
    assert calibration.most_rounds(lambda rounds: each * rounds, 1.25) == most

  def test_infinite_values_are_no_obstacle(self):
    def epsilon_fn(sigma):
      return math.inf if sigma < 0.5 else 1 / sigma

    assert calibration.calibrate(epsilon_fn, 1.0, 0.1, 10.0) == pytest.approx(1.0, abs=1e-5)
