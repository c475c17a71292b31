"""Tests of masks by past releases, and of what these say of coordinates."""

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import flattening
from fedsmp_tff import released
from fedsmp_tff import sparsifiers
from tests.support import numpy_reference
from tests.support import releases as releases_lib

_ALL = np.arange(releases_lib.DIM)


def _context(memory, shapes=releases_lib.SHAPES, seed=(7, 1), public_update=None):
  return sparsifiers.PublicContext(
      shapes, sum(flattening.sizes(shapes)), tf.convert_to_tensor(seed, tf.int64), tf.constant(0),
      memory, lambda: public_update,
  )


class TestReleasedTopK:

  @pytest.mark.parametrize('options, sentence', [
      ({'random_fraction': -0.1}, '`random_fraction` must be from 0 to 1'),
      ({'random_fraction': 1.5}, '`random_fraction`'),
      ({'num': None}, 'Exactly one of'),
  ])
  def test_options_out_of_range_are_refused(self, options, sentence):
    with pytest.raises(ValueError, match=sentence):
      released.ReleasedTopK(**{'num': 3, **options})

  def test_the_largest_energies_are_kept(self):
    option = released.ReleasedTopK(num=3, random_fraction=0.0)
    values = np.array([0.1, 5, 0.2, 0.1, 0.3, 0.1, 4, 0.2, 3, 0.1])
    release = releases_lib.release(_ALL, values, np.full(10, 0.1))
    memory = releases_lib.remembered(option, [release])
    for seed in range(5):
      kept = option.choose(_context(memory, seed=(seed, 0)))
      assert kept.dtype == tf.int32 and sorted(kept.numpy()) == [1, 6, 8]

  @pytest.mark.parametrize('num, random_fraction', [(1, 0.5), (4, 0.5), (10, 0.3), (5, 1.0)])
  def test_k_distinct_coordinates_are_chosen(self, num, random_fraction):
    option = released.ReleasedTopK(num=num, random_fraction=random_fraction)
    for releases in ([], releases_lib.some(4)):
      kept = option.choose(_context(releases_lib.remembered(option, releases))).numpy()
      assert len(kept) == len(set(kept)) == num
      assert kept.min() >= 0 and kept.max() < releases_lib.DIM

  def test_exploration_follows_the_energy_of_tensors(self):
    # Before any release both tensors have half of it: of 4000 draws of one coordinate
    # 2000 with stddev sqrt(1000) = 32, within five of them. After a release that finds all
    # energy in the second, it has three quarters: 3000 with stddev 27.
    option = released.ReleasedTopK(num=1, random_fraction=1.0)
    loud = releases_lib.release(_ALL, np.repeat([0.0, 1.0], [4, 6]), np.zeros(10))

    @tf.function
    def draws(memory):
      return tf.map_fn(
          lambda i: option.choose(_context(memory, seed=tf.stack([i, 5])))[0],
          tf.range(4000, dtype=tf.int64), fn_output_signature=tf.int32,
      )

    for releases, share in (([], 0.5), ([loud], 0.75)):
      memory = releases_lib.remembered(option, releases)
      counts = np.bincount(draws(memory), minlength=releases_lib.DIM)
      assert counts[4:].sum() == pytest.approx(4000 * share, abs=160)
      # Alike within a tensor; stddev of one coordinate's count is at most sqrt(500) = 22.
      for part in (counts[:4], counts[4:]):
        np.testing.assert_allclose(part, part.mean(), atol=110)


class TestHybridTopK:

  def _option(self, **options):
    public = (np.zeros((1, 1)), np.zeros(1))
    return released.HybridTopK(num=2, public_examples=public, **options)

  def test_what_is_refused(self):
    with pytest.raises(ValueError, match='`released_weight` must be'):
      self._option(released_weight=1.1)

  @pytest.mark.parametrize('weight, kept', [(0.0, [0, 1]), (0.5, [0, 8]), (1.0, [8, 9])])
  def test_weighs_shares_of_energy(self, weight, kept, monkeypatch):
    monkeypatch.setattr(released, '_SMOOTHING', 0.0)
    option = self._option(released_weight=weight)
    public = np.array([5, -3, 0.1, 0, 0, 0, 0, 0, 0, np.nan])
    values = np.array([0, 0, 0.1, 0.2, 0, 0, 0, 0, 80, 50.0])
    release = releases_lib.release(_ALL, values, np.zeros(10))
    memory = releases_lib.remembered(option, [release])
    found = option.choose(_context(memory, public_update=public)).numpy()
    assert sorted(found) == kept

  def test_public_energies_are_smoothed_by_rows_and_columns(self):
    smoothing = 0.75
    # A 3 by 4 layer and a bias of 2; energies sum up to 1.
    rng = np.random.default_rng(3)
    update = rng.normal(size=14)
    energy = update**2 / np.sum(update**2)
    layer = energy[:12].reshape(3, 4)
    product = np.outer(layer.sum(1), layer.sum(0)) / layer.sum()
    expected = np.concatenate([
        ((1 - smoothing) * layer + smoothing * product).ravel(), energy[12:]
    ])
    public = (np.zeros((1, 1)), np.zeros(1))
    shapes = [(3, 4), (2,)]
    for num in range(1, 14):
      option = released.HybridTopK(num=num, public_examples=public, released_weight=0.0)
      context = _context(option.initial_memory(14), shapes, public_update=update)
      assert set(option.choose(context).numpy()) == set(np.argsort(-expected)[:num])


class TestEnergies:

  @pytest.mark.parametrize('num', [0, 1, 5])
  @pytest.mark.parametrize('noisy', [False, True])
  def test_estimates_equal_numpy(self, num, noisy):
    memory = released.Energies.none(releases_lib.DIM)
    releases = releases_lib.some(num, k=3)
    if not noisy:
      releases = [release._replace(stddev=np.zeros(3)) for release in releases]
    for release in releases:
      memory = memory.after(release)
    total, visits, estimates = numpy_reference.energies(releases, releases_lib.SHAPES, 0.95)
    np.testing.assert_allclose(memory.total, total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(memory.visits, visits, rtol=1e-5)
    estimate = memory.estimate(releases_lib.SHAPES)
    np.testing.assert_allclose(estimate, estimates, rtol=1e-4, atol=1e-6)

  def test_pure_noise_gives_equal_estimates(self):
    # Nothing but noise: whatever the estimates are, they must not pick out who was lucky.
    rng = np.random.default_rng(6)
    kept = np.arange(4000, dtype=np.int32)
    release = releases_lib.release(kept, rng.normal(size=4000), np.ones(4000))
    found = released.Energies.none(8000).after(release).estimate([(100, 80)]).numpy()
    # 1 is the noise's variance; a naive estimate, x^2 - 1, has standard deviation sqrt(2).
    assert np.std(found) < 0.05 and np.all(np.isfinite(found))
