"""Tests of Theorem 1: it solves the paper's inequality, and names the conditions that fail."""

import math

import pytest

from fedsmp_tff.privacy import spec as spec_lib
from fedsmp_tff.theory import theorem_1

_N, _R, _T = 6000, 100, 180
_DELTA = _N**-1.1


def _spec(sigma=1.4, r=_R, rounds=_T):
  """Without a limit of slots."""
  return spec_lib.PrivacySpec(_N, r, rounds, sigma, 1.0, _DELTA, num_slots=_N)


class TestEpsilon:

  @pytest.mark.parametrize('sigma, r, rounds', [(1.4, 100, 180), (3.0, 6, 2), (0.5, 60, 9)])
  def test_epsilon_solves_the_inequality_of_the_theorem(self, sigma, r, rounds):
    epsilon, unmet = theorem_1.epsilon(_spec(sigma, r, rounds=rounds))
    q, log_delta = r / _N, math.log(1 / _DELTA)
    assert sigma**2 == pytest.approx(
        7 * q**2 * rounds * (epsilon + 2 * log_delta) / epsilon**2
    )
    assert (sigma**2 < 0.7) == any('sigma^2 = ' in u for u in unmet)

  def test_conditions_fail_for_the_settings_of_the_paper(self):
    _, unmet = theorem_1.epsilon(_spec())
    assert len(unmet) == 1 and unmet[0].startswith('alpha = 10.')
    assert theorem_1.epsilon(_spec(3.0, 6, rounds=10**6))[1] == []
    assert theorem_1.epsilon(_spec(0.0))[0] == math.inf
