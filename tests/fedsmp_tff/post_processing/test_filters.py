"""Tests of filtered updates."""

import math

import numpy as np
import pytest

from fedsmp_tff import sparsifiers
from fedsmp_tff.post_processing import filters
from tests.support import numpy_reference
from tests.support import releases as releases_lib


class TestFilters:

  @pytest.mark.parametrize('kind', [filters.LowPass, filters.Momentum, filters.Shrinkage])
  def test_what_is_refused(self, kind):
    for decay in (1.1, -0.1, math.nan):
      with pytest.raises(ValueError, match='`decay` must be'):
        kind(decay=decay)

  def _by_release(self, option, releases):
    memory = option.initialize(releases_lib.SHAPES)
    for release in releases:
      memory = option.next(memory, release)
      known = sparsifiers.Known(
          releases_lib.SHAPES, memory=memory, coordinates=release.coordinates, release=release
      )
      yield release, option.choose(known).numpy()

  def test_momentum_as_by_hand(self):
    velocity = np.zeros(releases_lib.DIM)
    for release, values in self._by_release(filters.Momentum(0.6), releases_lib.some()):
      j = release.coordinates
      velocity[j] = 0.6 * velocity[j] + release.values  # Others don't forget.
      np.testing.assert_allclose(values, velocity[j], rtol=1e-5)

  def test_low_pass_as_by_hand(self):
    heard = [[] for _ in range(releases_lib.DIM)]
    for release, values in self._by_release(filters.LowPass(0.6), releases_lib.some(12)):
      for i, (j, value) in enumerate(zip(release.coordinates, release.values)):
        heard[j].append(value)

        def filtered(x):
          mean = 0.0
          for now, before in zip(x, [0.0, *x]):
            mean = 0.6 * mean + 0.4 * (now + before) / 2
          return mean

        expected = filtered(heard[j]) / filtered([1.0] * len(heard[j]))
        assert values[i] == pytest.approx(expected, rel=1e-4, abs=1e-6)

  def test_low_pass_leaves_a_constant_as_it_is_and_noise_less(self):
    rng = np.random.default_rng(0)
    everywhere = np.arange(releases_lib.DIM, dtype=np.int32)
    constant = [releases_lib.release(everywhere, np.full(releases_lib.DIM, 0.3), np.zeros(releases_lib.DIM))] * 4
    for _, values in self._by_release(filters.LowPass(0.9), constant):
      np.testing.assert_allclose(values, 0.3, rtol=1e-5)
    noise = [
        releases_lib.release(everywhere, rng.normal(size=releases_lib.DIM), np.ones(releases_lib.DIM))
        for _ in range(200)
    ]
    late = [values for _, values in self._by_release(filters.LowPass(0.9), noise)][100:]
    # Variance (1 - decay) / 2 of white noise after y = decay y + (1 - decay) (x + x') / 2:
    # 0.05, of 1000 values that are about ten rounds alike: a relative error of 14 %.
    assert np.var(late) == pytest.approx(0.05, rel=0.6)

  def test_shrinkage_as_by_hand(self):
    releases = releases_lib.some()
    for t, (release, values) in enumerate(
        self._by_release(filters.Shrinkage(0.8), releases)
    ):
      estimates = numpy_reference.energies(releases[: t + 1], releases_lib.SHAPES, 0.8)[2]
      energy = np.maximum(estimates[release.coordinates], 0)
      expected = release.values * energy / (energy + release.stddev**2)
      np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-7)
