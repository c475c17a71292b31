"""Tests of lower bounds on epsilon: seldom too high, and near what is betrayed."""

import math

import numpy as np
import pytest

from fedsmp_tff.privacy import auditing
from tests.support import gaussian_mechanism

_DELTA = 1e-4


class TestOneRelease:

  def test_bound_is_below_and_near_the_true_epsilon(self):
    rng = np.random.default_rng(0)
    sigma, truth = 1.4, gaussian_mechanism.epsilon(1 / 1.4, _DELTA)
    absent = rng.normal(0, sigma, 150_000)
    audit = auditing.epsilon_of_one_release(1 + rng.normal(0, sigma, 150_000), absent, _DELTA)
    assert 0.7 * truth < audit.epsilon < truth
    # Noise at 2/3 of its scale betrays more than was claimed.
    audit = auditing.epsilon_of_one_release(
        1 + 2 / 3 * rng.normal(0, sigma, 150_000), 2 / 3 * absent, _DELTA
    )
    assert audit.epsilon > truth

  def test_bound_is_too_high_as_rarely_as_claimed(self):
    # Randomized response at epsilon = 1, which the threshold attack meets exactly: the
    # bound is too high in at most 5 % of trials; 15 of 100 would be 4.6 standard errors.
    rng = np.random.default_rng(1)
    rate = 1 / (1 + math.exp(-1))
    too_high = 0
    for _ in range(100):
      present, absent = rng.random(4000) < rate, rng.random(4000) > rate
      audit = auditing.epsilon_of_one_release(present.astype(float), absent.astype(float), 0.0)
      too_high += audit.epsilon > 1
      assert audit.epsilon > 0.7
    assert too_high < 15

  @pytest.mark.parametrize('delta, confidence, expected', [
      # 80 in 100 or more have probability 2.5 % at a rate of 0.7081573, and 30 in 200 or fewer at
      # 0.2071587, by binomial sums: log(0.7081573 / 0.2071587), and so on.
      (0.0, 0.95, 1.2291811), (0.1, 0.95, 1.0769484), (0.0, 0.9, 1.2953163),
  ])
  def test_bound_equals_two_sided_clopper_pearson(self, delta, confidence, expected):
    present = np.repeat([1.0, 1.0, 0.0], [25, 80, 20])  # A fifth chooses the threshold.
    absent = np.repeat([0.0, 1.0, 0.0], [50, 30, 170])
    audit = auditing.epsilon_of_one_release(present, absent, delta, confidence)
    assert audit.epsilon == pytest.approx(expected, abs=1e-7)

  def test_bound_is_near_zero_for_equal_distributions(self):
    scores = np.random.default_rng(2).normal(size=(2, 20_000))
    assert auditing.epsilon_of_one_release(*scores, _DELTA).epsilon < 0.1
