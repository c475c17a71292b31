"""Tests of the numbers of integers modulo 2^b, and of the table of their noise."""

import collections
import fractions

import numpy as np
import pytest

from fedsmp_tff.mechanism import integer_noise
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from tests.support import numpy_reference


def _lattice(num_values=64, bits=16, sigma=0.0, r=4, **options):
  noise = integer_noise.DiscreteGaussian(num_values, bits)
  return mechanism_lib.Mechanism(
      r, clipping_norm=1.0, noise_multiplier=sigma, noise=noise, **options
  ).encoding()


class TestComputation:

  @pytest.mark.parametrize('bits, match', [
      (7, 'an integer from 8 to 30'), (31, 'an integer from 8 to 30'), (16.0, 'a positive integer'),
  ])
  def test_bits_out_of_range_are_refused(self, bits, match):
    with pytest.raises(ValueError, match=f'`bits` must be {match}'):
      _lattice(bits=bits)

  def test_too_coarse_steps_are_refused(self):
    fine = _lattice(num_values=8317, sigma=0.3, r=100, bits=11)
    assert fine.share_variance >= integer_noise.MIN_SHARE_VARIANCE
    with pytest.raises(ValueError, match='variance of at least 8 .*With 8 bits .*or `bits`'):
      _lattice(num_values=8317, sigma=0.3, r=100, bits=8)

  @pytest.mark.parametrize(
      'num_values, sigma, r',
      [(1_000_000, 1.4, 100), (8317, 0.05, 100), (10, 0.3, 1000), (10, 1e-3, 1000)],
  )
  def test_default_bits_are_16_or_the_fewest_that_suffice(self, num_values, sigma, r):
    bits = _lattice(num_values, None, sigma, r).bits
    assert bits >= 16
    if bits > 16:
      with pytest.raises(ValueError, match='or `bits`'):
        _lattice(num_values, bits - 1, sigma, r)


class TestStatisticalDistance:

  def test_distance_counts_all_integers_of_all_slots(self, monkeypatch):
    # A table as far from its distribution as a test can see: every integer of every share
    # may be that far off, and the sum as far as all of them.
    far = integer_noise.IntegerTable(0, np.array([0]), np.array([0]), 1e-4)
    monkeypatch.setattr(integer_noise, 'integer_table', lambda variance: far)
    lattice = _lattice(7, sigma=1.0, num_slots=9, min_reports=3)
    assert lattice.statistical_distance == pytest.approx(9 * 8 * 1e-4)


class TestTable:

  @pytest.mark.parametrize('variance', [0.3, 40.0, 12345.6])
  def test_table_has_discrete_gaussian_probabilities(self, variance):
    table = integer_noise.integer_table(variance)
    x = np.arange(table.lowest, table.lowest + len(table.high) + 1)
    assert x[0] == -x[-1]
    upper = np.array([(int(h) + 2**63) / 2**64 for h in table.high])
    cumulative = np.cumsum(numpy_reference.discrete_gaussian(variance, x))[:-1]
    # To the accuracy of double precision.
    np.testing.assert_allclose(upper, cumulative, atol=1e-12)
    assert 0 < table.distance < 1e-17
    # In the middle by the exact half of its own probability.
    assert upper[len(x) // 2] + upper[len(x) // 2 - 1] == pytest.approx(1, abs=1e-15)

  @pytest.mark.parametrize('variance', [2.0, 40.0, 12345.6])
  def test_thresholds_are_exact_and_distance_covers_ties(
      self, variance
  ):
    table = integer_noise.integer_table(variance)
    words = [[int(word) + 2**63 for word in words] for words in zip(table.high, table.low)]
    thresholds = numpy_reference.discrete_gaussian_thresholds(variance, table.lowest)
    assert [(high << 64) + low for high, low in words] == thresholds
    # A draw passes at most one of the thresholds in its own upper word: the others act as if
    # they were at the word's end.
    effective = [
        t if i == 0 or words[i][0] != words[i - 1][0] else (words[i][0] + 1) << 64
        for i, t in enumerate(thresholds)
    ]
    drawn, exact = (np.diff([0, *t, 2**128]) for t in (effective, thresholds))
    distance = fractions.Fraction(int(np.sum(np.abs(drawn - exact))), 2 * 2**128)
    ties = sum(count > 1 for count in collections.Counter(high for high, _ in words).values())
    assert distance < table.distance == pytest.approx(ties * 2**-64, rel=1e-6)

  def test_too_wide_a_distribution_is_refused(self):
    with pytest.raises(ValueError, match='`bits` are too many.* too wide to draw exactly'):
      integer_noise.integer_table(1e9)

  @pytest.mark.parametrize('variance', [1e-6, 1e-4, 0.01])
  def test_table_of_tiny_variance_has_ordered_thresholds(self, variance):
    table = integer_noise.integer_table(variance)
    assert np.all(np.diff(table.high.astype(object)) >= 0) and 0 <= table.distance < 1e-15
