"""Tests of the search for a parameter that reaches an epsilon."""

import math

import pytest

from fedsmp_tff.privacy import calibration


class TestCalibrate:

  @pytest.mark.parametrize('epsilon', [0.3, 1.0, 7.0])
  def test_it_is_near_the_target_and_never_above_it(self, epsilon):
    def spent(sigma):
      return 2 / sigma**2

    found = calibration.calibrate(spent, epsilon, 1e-2, 1e2, tol=1e-9)
    assert spent(found) <= epsilon
    assert found == pytest.approx(math.sqrt(2 / epsilon), abs=2e-9)

  def test_of_integers_it_is_the_largest_within_the_target(self):
    found = calibration.calibrate(lambda rounds: 0.1 * rounds, 1.25, 8, 16, discrete=True)
    assert found == 12

  def test_infinite_values_are_no_obstacle(self):
    def spent(sigma):
      return math.inf if sigma < 0.5 else 1 / sigma

    assert calibration.calibrate(spent, 1.0, 0.1, 10.0) == pytest.approx(1.0, abs=1e-5)
