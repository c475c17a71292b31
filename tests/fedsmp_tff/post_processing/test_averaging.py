"""Tests of averages of weights over rounds."""

import math

import numpy as np
import pytest

from fedsmp_tff.post_processing import averaging


def _rounds(num):
  rng = np.random.default_rng(0)
  return [[rng.normal(size=(2, 3)).astype(np.float32), rng.normal()] for _ in range(num)]


class TestAverages:

  @pytest.mark.parametrize('decay', [1, -0.1, math.nan])
  def test_decay_is_checked(self, decay):
    with pytest.raises(ValueError, match='`decay` must be'):
      averaging.ExponentialAverage(decay)

  def test_first_is_checked(self):
    with pytest.raises(ValueError, match='`first` must be'):
      averaging.TailAverage(-1)

  def test_exponential_as_by_hand(self):
    average, expected = averaging.ExponentialAverage(0.8), None
    for n, weights in enumerate(_rounds(12), 1):
      average.add(weights)
      # A plain mean of the first five, exponential from there.
      share = max(0.2, 1 / n)
      expected = [
          w if expected is None else (1 - share) * e + share * w
          for e, w in zip(expected or weights, weights)
      ]
      for found, by_hand, given in zip(average.mean, expected, weights):
        np.testing.assert_allclose(found, by_hand, rtol=1e-5)
        assert np.asarray(found).dtype == np.asarray(given).dtype

  def test_tail_is_the_mean_of_the_last(self):
    rounds = _rounds(7)
    average = averaging.TailAverage(3)
    for weights in rounds[:3]:
      average.add(weights)
      np.testing.assert_array_equal(average.mean[0], weights[0])
    for weights in rounds[3:]:
      average.add(weights)
    np.testing.assert_allclose(
        average.mean[0], np.mean([w[0] for w in rounds[3:]], axis=0), rtol=1e-5
    )

  def test_less_noise_than_the_last(self):
    # Means of 20 of variance 1: 1/20; of decay 0.9: (1 - 0.9) / (1 + 0.9). Of 4000 values
    # a relative error of 2 %.
    rng = np.random.default_rng(1)
    tail, exponential = averaging.TailAverage(80), averaging.ExponentialAverage(0.9)
    for _ in range(100):
      weights = rng.normal(size=4000)
      tail.add(weights)
      exponential.add(weights)
    assert np.var(tail.mean) == pytest.approx(1 / 20, rel=0.1)
    assert np.var(exponential.mean) == pytest.approx(0.1 / 1.9, rel=0.1)
