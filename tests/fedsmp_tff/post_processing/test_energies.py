"""Tests of what past releases say of coordinates."""


import numpy as np
import pytest

from fedsmp_tff.post_processing import energies
from tests.support import numpy_reference
from tests.support import releases as releases_lib


def _rank_one(rng, rows, columns):
  """Values whose energies are near to a product of heavy-tailed factors."""
  scale = np.outer(np.exp(rng.normal(size=rows)), np.exp(rng.normal(size=columns)))
  return (scale * rng.normal(size=scale.shape)).ravel()


class TestEnergies:

  @pytest.mark.parametrize('num', [0, 1, 5])
  @pytest.mark.parametrize('noisy', [False, True])
  def test_as_by_hand(self, num, noisy):
    memory = energies.Energies.none(releases_lib.DIM)
    releases = releases_lib.some(num, k=3)
    if not noisy:
      releases = [release._replace(stddev=np.zeros(3)) for release in releases]
    for release in releases:
      memory = memory.after(release, 0.8)
    total, visits, estimates = numpy_reference.energies(releases, releases_lib.SHAPES, 0.8)
    np.testing.assert_allclose(memory.total, total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(memory.visits, visits, rtol=1e-5)
    np.testing.assert_allclose(memory.estimate(releases_lib.SHAPES), estimates, rtol=1e-4, atol=1e-6)

  @pytest.mark.parametrize('stddev', [0.0, 0.3, 3.0])
  def test_rows_and_columns_tell_of_coordinates_never_kept(self, stddev):
    # A tenth of the coordinates has been kept once: of the energy in the others, the tenth
    # with the largest estimates must hold well over the tenth that chance has, the less so
    # the more noise there is.
    rng = np.random.default_rng(5)
    values = _rank_one(rng, 100, 80)
    kept = np.sort(rng.permutation(8000)[:800])
    found = energies.Energies.none(8000).after(
        releases_lib.release(
            kept.astype(np.int32), values[kept] + stddev * rng.normal(size=800),
            np.full(800, stddev),
        ),
        1.0,
    ).estimate([(100, 80)]).numpy()
    others = np.setdiff1d(np.arange(8000), kept)
    best = others[np.argsort(-found[others])[:720]]
    share = np.sum(values[best] ** 2) / np.sum(values[others] ** 2)
    assert share > {0.0: 0.5, 0.3: 0.5, 3.0: 0.3}[stddev]

  def test_noise_of_known_size_alone_makes_all_alike(self):
    # Nothing but noise: whatever the estimates are, they must not pick out who was lucky.
    rng = np.random.default_rng(6)
    kept = np.arange(4000, dtype=np.int32)
    release = releases_lib.release(kept, rng.normal(size=4000), np.ones(4000))
    found = energies.Energies.none(8000).after(release, 1.0).estimate([(100, 80)]).numpy()
    # 1 is the noise's variance; a naive estimate, x^2 - 1, has standard deviation sqrt(2).
    assert np.std(found) < 0.05 and np.all(np.isfinite(found))

  def test_noise_alone_has_no_energy(self):
    # Mean of 4000 squares of N(0, s^2) less s^2: stddev s^2 sqrt(2/4000) = 0.022 s^2, so
    # within five of them but for a chance of 6e-7; were the noise taken for 2/3 or 3/2
    # of what it is, it would be 0.56 s^2 above, or 1.25 s^2 below.
    rng = np.random.default_rng(1)
    stddev = np.full(4000, 0.3)
    memory = energies.Energies.none(4000)
    for scale, off in ((1, 0), (2 / 3, 0.56), (3 / 2, -1.25)):
      found = memory.after(
          releases_lib.release(
              np.arange(4000, dtype=np.int32), 0.3 * rng.normal(size=4000), scale * stddev
          ),
          1.0,
      )
      assert np.mean(found.total) / 0.09 == pytest.approx(off, abs=0.12)
