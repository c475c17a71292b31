"""Tests of lower bounds on epsilon: seldom too high, and near what is betrayed."""

import math

import numpy as np

from fedsmp_tff.privacy import auditing
from tests.support import gaussian_mechanism

_DELTA = 1e-4


class TestOneRelease:

  def test_it_is_below_the_truth_and_near_it(self):
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

  def test_it_is_too_high_no_more_often_than_it_says(self):
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

  def test_nothing_betrayed_is_nothing_found(self):
    scores = np.random.default_rng(2).normal(size=(2, 20_000))
    assert auditing.epsilon_of_one_release(*scores, _DELTA).epsilon < 0.1
