"""Tests of the size of a client's share of the noise, and of tables of integer noise."""

import math

import numpy as np
import pytest

from fedsmp_tff.mechanism import noise
from tests.support import integer_noise


class TestComputation:

  def test_share_of_one_client(self):
    # N(0, C^2 sigma^2 / r): Algorithm 1.
    assert noise.share_stddev(0.4 * 1.4, 25) == pytest.approx(
        math.sqrt(0.4**2 * 1.4**2 / 25)
    )


class TestIntegers:

  @pytest.mark.parametrize('variance', [0.3, 2.0, 40.0, 12345.6])
  def test_the_table_has_the_distribution_s_probabilities(self, variance):
    table = noise.integer_table(variance)
    x = np.arange(table.lowest, table.lowest + len(table.high) + 1)
    assert x[0] == -x[-1]
    upper = np.array([(int(h) + 2**63) / 2**64 for h in table.high])
    cumulative = np.cumsum(integer_noise.probabilities(variance, x))[:-1]
    # What double precision can tell.
    np.testing.assert_allclose(upper, cumulative, atol=1e-12)
    assert 0 < table.distance < 1e-17
    # In the middle by the exact half of its own probability.
    assert upper[len(x) // 2] + upper[len(x) // 2 - 1] == pytest.approx(1, abs=1e-15)

  def test_too_wide_a_distribution_is_refused(self):
    with pytest.raises(ValueError, match='too wide to draw exactly; lower `bits`'):
      noise.integer_table(1e9)

  @pytest.mark.parametrize('variance', [1e-6, 1e-4, 0.01])
  def test_a_table_of_hardly_any_noise_ends_at_the_last_threshold(self, variance):
    table = noise.integer_table(variance)
    assert np.all(np.diff(table.high.astype(object)) >= 0) and 0 <= table.distance < 1e-15
