"""Tests of the draws of a client's share of the noise."""

import math

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from fedsmp_tff import randomness
from fedsmp_tff.mechanism import noise
from fedsmp_tff.mechanism import noise_shares
from tests.support import integer_noise

_CLIENTS, _CLIP, _SIGMA, _VALUES = 25, 0.4, 1.4, 4000


class TestGaussian:

  def test_shares_add_up_to_the_mechanism_and_to_no_other_scale(self):
    stddev = noise.share_stddev(_CLIP * _SIGMA, _CLIENTS)

    @tf.function
    def share(client):
      seed = randomness.fold_in(tf.constant([1, 2], tf.int64), client)
      return noise_shares.gaussian_share(_VALUES, stddev, seed)

    total = sum(share(tf.constant(i)).numpy() for i in range(_CLIENTS))

    def p_value(scale):
      return stats.kstest(total, 'norm', (0, scale * _CLIP * _SIGMA)).pvalue

    # Seeded; at the true scale a p-value is uniform, so below 1e-3 with
    # probability 1e-3. At 2/3 or 3/2 of it the distributions are 0.09 apart at
    # least, and 4000 values show that with a p-value under 1e-25.
    assert p_value(1) > 1e-3
    assert p_value(2 / 3) < 1e-20
    assert p_value(3 / 2) < 1e-20

  def test_another_seed_gives_an_independent_share(self):
    one, other = (
        noise_shares.gaussian_share(_VALUES, 1.0, tf.constant(s, tf.int64)).numpy()
        for s in ([1, 2], [1, 3])
    )
    # A correlation of 4000 independent pairs has standard deviation 1/sqrt(4000).
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(_VALUES)


@pytest.mark.parametrize('kind', [noise.DISCRETE_GAUSSIAN, noise.SKELLAM])
class TestIntegers:

  def test_draws_follow_it_and_no_other_scale(self, kind):
    variance, num = 2.0, 20_000
    drawn = noise_shares.integer_share(
        num, kind, variance, tf.constant([5, 6], tf.int64)
    ).numpy()
    x = np.arange(-60, 61)

    def chi_squared(scale):
      expected = num * integer_noise.probabilities(kind, scale**2 * variance, x)
      middle = np.abs(x) <= 4
      classes = np.append(expected[middle], expected[~middle].sum())
      counts = np.append(
          [np.sum(drawn == value) for value in x[middle]], np.sum(np.abs(drawn) > 4)
      )
      return np.sum((counts - classes) ** 2 / classes)

    # Nine degrees of freedom exceed 34 with probability 1e-4 (seeded).
    assert chi_squared(1) < 34
    assert chi_squared(2 / 3) > 500 and chi_squared(3 / 2) > 500

  def test_other_seeds_give_independent_shares(self, kind):
    one, other = (
        noise_shares.integer_share(_VALUES, kind, 50.0, tf.constant(s, tf.int64)).numpy()
        for s in ([1, 2], [1, 3])
    )
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(_VALUES)
