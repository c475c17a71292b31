"""Tests of the draws of a client's share of the noise."""

import bisect

import numpy as np
import pytest
from scipy import special
import tensorflow as tf

from fedsmp_tff.mechanism import chacha20
from fedsmp_tff.mechanism import integer_noise
from fedsmp_tff.mechanism import noise_shares
from tests.support import numpy_reference


class TestIntegers:

  def test_draws_follow_the_discrete_gaussian(self):
    variance, num = 2.0, 20_000
    drawn = noise_shares.integer_share(num, variance, tf.constant([5, 6], tf.int64)).numpy()
    x = np.arange(-60, 61)

    def chi_squared(scale):
      expected = num * numpy_reference.discrete_gaussian(scale**2 * variance, x)
      middle = np.abs(x) <= 4
      classes = np.append(expected[middle], expected[~middle].sum())
      counts = np.append([np.sum(drawn == value) for value in x[middle]], np.sum(np.abs(drawn) > 4))
      return np.sum((counts - classes) ** 2 / classes)

    # Nine degrees of freedom exceed 34 with probability 1e-4 (seeded).
    assert chi_squared(1) < 34
    assert chi_squared(2 / 3) > 500 and chi_squared(3 / 2) > 500

  @pytest.mark.parametrize('variance', [0.3, 40.0])
  def test_a_draw_compares_both_words_with_exact_thresholds(self, monkeypatch, variance):
    lowest = integer_noise.integer_table(variance).lowest
    thresholds = numpy_reference.discrete_gaussian_thresholds(variance, lowest)
    bits = [t + i for t in thresholds for i in (-1, 0, 1)]
    words = [[(b >> 64) - 2**63 for b in bits], [b % 2**64 - 2**63 for b in bits]]
    monkeypatch.setattr(chacha20, 'stream', lambda seed, num: tf.constant(np.ravel(words)))
    drawn = noise_shares.integer_share(len(bits), variance, tf.constant([5, 6], tf.int64))
    # A draw passes at most one of the thresholds in its own upper word (`IntegerTable.distance`).
    passed = [
        min(bisect.bisect(thresholds, b), bisect.bisect_left(thresholds, b >> 64 << 64) + 1)
        for b in bits
    ]
    np.testing.assert_array_equal(drawn, lowest + np.array(passed))


def _bits(magnitude, between, negative):
  """The two words of which `normal_of_bits` makes a value."""
  return [magnitude - (2**63 if negative else 0), between]


class TestTails:

  @pytest.mark.parametrize('exponent', [1, 27, 64, 90, 127])
  @pytest.mark.parametrize('negative', [False, True])
  def test_probability_two_to_minus_n_gives_its_quantile(self, exponent, negative):
    # Both tails alike. At 2^-27 TensorFlow's own normal has ended.
    steps = 2**64 >> exponent if exponent <= 64 else 0
    between = 0 if exponent <= 64 else 2**127 >> exponent
    if exponent == 1:
      steps, between = 2**63 - 1, 2**63 - 1
    got = noise_shares.normal_of_bits(
        tf.constant(np.array([_bits(steps, between, negative)]).T)
    ).numpy()[0]
    probability = (steps + (between + 0.5) * 2.0**-63) * 2.0**-64
    assert probability == pytest.approx(2.0**-exponent, rel=0.51)
    expected = -special.ndtri(probability)
    assert got == pytest.approx(-expected if negative else expected, rel=1e-14, abs=1e-15)
    assert (got < 0) == negative or exponent == 1

  def test_quantiles_equal_scipy_from_center_to_far_tails(self):
    # 0.075 and exp(-25) are where one approximation ends and the next begins.
    p = np.concatenate([
        2.0 ** -np.linspace(1.001, 64, 1000), 0.075 * np.linspace(0.99, 1.01, 99),
        np.exp(-25) * np.linspace(0.99, 1.01, 99),
    ])
    steps = (p * 2.0**64).astype(np.int64)
    between = np.full(len(p), 2**62)
    got = noise_shares.normal_of_bits(tf.constant(np.stack([steps, between]))).numpy()
    expected = -special.ndtri((steps + 0.5) * 2.0**-64)
    np.testing.assert_allclose(got, expected, rtol=4e-15)

  def test_share_is_the_normal_quantile_of_cipher_bits(self):
    seed = tf.constant([8, -9], tf.int64)
    share = noise_shares.gaussian_share(6, 2.5, seed).numpy()
    words = np.reshape(chacha20.stream(seed, 12), [2, 6])
    uniform = [
        ((abs_ & (2**63 - 1)) + ((between & (2**63 - 1)) + 0.5) / 2**63) / 2**64
        for abs_, between in zip(*words.tolist())
    ]
    expected = -2.5 * special.ndtri(uniform) * np.where(words[0] < 0, -1, 1)
    np.testing.assert_allclose(share, expected, rtol=1e-12)

  @pytest.mark.parametrize('least', [0, 5, 2**23 - 1, 2**23])
  def test_second_words_are_drawn_for_the_tails(self, monkeypatch, least):
    # A cipher whose stream has one value in the deep tail.
    words = np.random.default_rng(3).integers(2**40, 2**63, size=12)
    words[2] = least
    monkeypatch.setattr(chacha20, 'stream', lambda seed, num: tf.constant(words[:num]))
    share = noise_shares.gaussian_share(6, 1.0, tf.constant([1, 2], tf.int64)).numpy()
    second = words[6:] if least < 2**23 else np.zeros(6, np.int64)
    expected = noise_shares.normal_of_bits(tf.constant([words[:6], second])).numpy()
    np.testing.assert_array_equal(share, expected)
    assert share[2] == share.max() > 6.8
