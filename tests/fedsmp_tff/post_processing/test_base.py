"""Tests of what the server makes of releases: masks, factors, guesses, filtered updates."""

import math

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import state as state_lib
from fedsmp_tff.post_processing import energies
from fedsmp_tff.post_processing import filters
from fedsmp_tff.post_processing import preconditioning
from fedsmp_tff.post_processing import prediction
from fedsmp_tff.post_processing import released_topk
from tests.support import numpy_reference

_SHAPES = [(4,), (2, 3)]
_DIM = 10


def _releases(num=6, k=4, seed=0):
  rng = np.random.default_rng(seed)
  return [
      state_lib.Release(
          np.sort(rng.permutation(_DIM)[:k]).astype(np.int32),
          rng.normal(size=k),
          rng.uniform(0.1, 0.5, size=k),
      )
      for _ in range(num)
  ]


def _remembered(option, releases):
  memory = option.initialize(_SHAPES)
  for release in releases:
    memory = option.next(memory, release)
  return memory


def _chosen(option, update, memory, shapes):
  """What a sparsifier that takes public data keeps, as an array."""
  return option.choose(sparsifiers.Known(shapes, None, memory, lambda: update)).numpy()


def _rank_one(rng, rows, columns):
  """Values whose energies are near to a product of heavy-tailed factors."""
  scale = np.outer(np.exp(rng.normal(size=rows)), np.exp(rng.normal(size=columns)))
  return (scale * rng.normal(size=scale.shape)).ravel()


class TestEnergies:

  @pytest.mark.parametrize('num', [0, 1, 5])
  @pytest.mark.parametrize('noisy', [False, True])
  def test_as_by_hand(self, num, noisy):
    memory = energies.Energies.none(_SHAPES)
    releases = _releases(num, k=3)
    if not noisy:
      releases = [release._replace(stddev=np.zeros(3)) for release in releases]
    for release in releases:
      memory = memory.after(release, 0.8)
    total, visits, estimates = numpy_reference.energies(releases, _SHAPES, 0.8)
    np.testing.assert_allclose(memory.total, total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(memory.visits, visits, rtol=1e-5)
    np.testing.assert_allclose(memory.estimate(_SHAPES), estimates, rtol=1e-4, atol=1e-6)

  @pytest.mark.parametrize('stddev', [0.0, 0.3, 3.0])
  def test_rows_and_columns_tell_of_coordinates_never_kept(self, stddev):
    # A tenth of the coordinates has been kept once: of the energy in the others, the tenth
    # with the largest estimates must hold well over the tenth that chance has, the less so
    # the more noise there is.
    rng = np.random.default_rng(5)
    values = _rank_one(rng, 100, 80)
    kept = np.sort(rng.permutation(8000)[:800])
    found = energies.Energies.none([(100, 80)]).after(
        state_lib.Release(
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
    release = state_lib.Release(kept, rng.normal(size=4000), np.ones(4000))
    found = energies.Energies.none([(100, 80)]).after(release, 1.0).estimate([(100, 80)]).numpy()
    # 1 is the noise's variance; a naive estimate, x^2 - 1, has standard deviation sqrt(2).
    assert np.std(found) < 0.05 and np.all(np.isfinite(found))

  def test_noise_alone_has_no_energy(self):
    # Mean of 4000 squares of N(0, s^2) less s^2: stddev s^2 sqrt(2/4000) = 0.022 s^2, so
    # within five of them but for a chance of 6e-7; were the noise taken for 2/3 or 3/2
    # of what it is, it would be 0.56 s^2 above, or 1.25 s^2 below.
    rng = np.random.default_rng(1)
    stddev = np.full(4000, 0.3)
    memory = energies.Energies.none([(4000,)])
    for scale, off in ((1, 0), (2 / 3, 0.56), (3 / 2, -1.25)):
      found = memory.after(
          state_lib.Release(
              np.arange(4000, dtype=np.int32), 0.3 * rng.normal(size=4000), scale * stddev
          ),
          1.0,
      )
      assert np.mean(found.total) / 0.09 == pytest.approx(off, abs=0.12)


class TestReleasedTopK:

  @pytest.mark.parametrize(
      'options, sentence',
      [
          ({'decay': 0}, '`decay` must be more than 0'),
          ({'decay': math.nan}, '`decay`'),
          ({'explore': -0.1}, '`explore` must be from 0 to 1'),
          ({'explore': 1.5}, '`explore`'),
          ({'num': None}, 'Exactly one of'),
      ],
  )
  def test_what_is_refused(self, options, sentence):
    with pytest.raises(ValueError, match=sentence):
      released_topk.ReleasedTopK(**{'num': 3, **options})

  def test_the_largest_energies_are_kept(self):
    option = released_topk.ReleasedTopK(num=3, explore=0.0)
    values = np.array([0.1, 5, 0.2, 0.1, 0.3, 0.1, 4, 0.2, 3, 0.1])
    release = state_lib.Release(np.arange(_DIM, dtype=np.int32), values, np.full(_DIM, 0.1))
    memory = option.next(option.initialize(_SHAPES), release)
    for seed in range(5):
      kept = option.choose(sparsifiers.Known(_SHAPES, tf.constant([seed, 0], tf.int64), memory))
      assert kept.dtype == tf.int32 and list(kept.numpy()) == [1, 6, 8]

  @pytest.mark.parametrize('num, explore', [(1, 0.5), (4, 0.5), (10, 0.3), (5, 1.0)])
  def test_k_distinct_ascending_coordinates(self, num, explore):
    option = released_topk.ReleasedTopK(num=num, explore=explore)
    for releases in ([], _releases(4)):
      kept = option.choose(
          sparsifiers.Known(
              _SHAPES, tf.constant([7, 1], tf.int64), _remembered(option, releases)
          )
      ).numpy()
      assert len(set(kept)) == num and np.all(np.diff(kept) > 0)
      assert kept.min() >= 0 and kept.max() < _DIM

  def test_exploration_goes_by_tensors(self):
    # Before any release both tensors have half of it: of 4000 draws of one coordinate
    # 2000 with stddev sqrt(1000) = 32, within five of them. After a release that finds all
    # energy in the second, it has three quarters: 3000 with stddev 27.
    option = released_topk.ReleasedTopK(num=1, explore=1.0)
    loud = state_lib.Release(
        np.arange(_DIM, dtype=np.int32), np.repeat([0.0, 1.0], [4, 6]), np.zeros(_DIM)
    )

    @tf.function
    def draws(memory):
      return tf.map_fn(
          lambda i: option.choose(sparsifiers.Known(_SHAPES, tf.stack([i, 5]), memory))[0],
          tf.range(4000, dtype=tf.int64), fn_output_signature=tf.int32,
      )

    for releases, share in (([], 0.5), ([loud], 0.75)):
      counts = np.bincount(draws(_remembered(option, releases)), minlength=_DIM)
      assert counts[4:].sum() == pytest.approx(4000 * share, abs=160)
      # Alike within a tensor; stddev of one coordinate's count is at most sqrt(500) = 22.
      for part in (counts[:4], counts[4:]):
        np.testing.assert_allclose(part, part.mean(), atol=110)


class TestHybridTopK:

  def _option(self, **options):
    public = (np.zeros((1, 1)), np.zeros(1))
    return released_topk.HybridTopK(num=2, public_examples=public, **options)

  def test_what_is_refused(self):
    for options in ({'released_weight': 1.1}, {'decay': 0}, {'smoothing': -1}):
      with pytest.raises(ValueError, match=f'`{next(iter(options))}` must be'):
        self._option(**options)

  @pytest.mark.parametrize('weight, kept', [(0.0, [0, 1]), (0.5, [0, 8]), (1.0, [8, 9])])
  def test_weighs_shares_of_energy(self, weight, kept):
    option = self._option(released_weight=weight, smoothing=0.0)
    public = np.array([5, -3, 0.1, 0, 0, 0, 0, 0, 0, np.nan])
    values = np.array([0, 0, 0.1, 0.2, 0, 0, 0, 0, 80, 50.0])
    release = state_lib.Release(np.arange(_DIM, dtype=np.int32), values, np.zeros(_DIM))
    found = _chosen(option, public, _remembered(option, [release]), _SHAPES)
    assert list(found) == kept

  @pytest.mark.parametrize('smoothing', [0.0, 0.75, 1.0])
  def test_public_energies_are_smoothed_by_rows_and_columns(self, smoothing):
    # Of a 3 by 4 layer and a bias of 2; energies sum up to 1.
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
      option = released_topk.HybridTopK(
          num=num, public_examples=public, released_weight=0.0, smoothing=smoothing
      )
      found = _chosen(option, update, option.initialize(shapes), shapes)
      assert set(found) == set(np.argsort(-expected)[:num])


class TestPreconditioner:

  @pytest.mark.parametrize(
      'options', [{'decay': 0}, {'exponent': -1}, {'exponent': 2}]
  )
  def test_what_is_refused(self, options):
    with pytest.raises(ValueError, match=f'`{next(iter(options))}` must be'):
      preconditioning.Preconditioner(**options)

  def test_nothing_before_the_first_release(self):
    option = preconditioning.Preconditioner()
    factors = option.factors(option.initialize(_SHAPES), _SHAPES, np.array([1, 7]))
    np.testing.assert_array_equal(factors, [1, 1])

  def test_least_noise_for_the_same_norm(self):
    option = preconditioning.Preconditioner()
    values = np.array([1, 2, 3, 4, 1, 1, 1, 6, 2, 0.5])
    everywhere = np.arange(_DIM, dtype=np.int32)
    memory = option.next(
        option.initialize(_SHAPES), state_lib.Release(everywhere, values, np.zeros(_DIM))
    )
    factors = option.factors(memory, _SHAPES, everywhere).numpy()
    assert np.sum((factors * values) ** 2) == pytest.approx(np.sum(values**2), rel=1e-5)
    # By Cauchy and Schwarz.
    least = np.sum(np.abs(values)) ** 2 / (_DIM * np.sum(values**2))
    assert np.mean(factors**-2.0) == pytest.approx(least, rel=1e-4)

  def test_factors_are_bounded(self):
    option = preconditioning.Preconditioner(exponent=1.0)
    values = np.array([1e-9, 1e9] + [1.0] * 8)
    everywhere = np.arange(_DIM, dtype=np.int32)
    release = state_lib.Release(everywhere, values, np.full(_DIM, 1e-3))
    factors = option.factors(_remembered(option, [release]), _SHAPES, everywhere).numpy()
    assert np.all(np.isfinite(factors)) and factors.min() > 0
    assert factors.max() / factors.min() <= 100 * (1 + 1e-5)


class TestPrediction:

  @pytest.mark.parametrize('options', [{'decay': 1}, {'share': -1}, {'share': math.nan}])
  def test_what_is_refused(self, options):
    with pytest.raises(ValueError, match=f'`{next(iter(options))}` must be'):
      prediction.Prediction(**options)

  def test_as_by_hand(self):
    option, releases = prediction.Prediction(decay=0.7, share=0.6), _releases()
    expected = np.zeros(_DIM)
    for j in range(_DIM):
      heard = [value for r in releases for i, value in zip(r.coordinates, r.values) if i == j]
      weights = 0.7 ** np.arange(len(heard))[::-1]
      expected[j] = 0.6 * np.dot(weights, heard) / weights.sum() if heard else 0
    everywhere = np.arange(_DIM)
    guess = option.guess(_remembered(option, releases), everywhere)
    np.testing.assert_allclose(guess, expected, rtol=1e-5, atol=1e-6)


class TestFilters:

  @pytest.mark.parametrize('kind', [filters.LowPass, filters.Momentum, filters.Shrinkage])
  def test_what_is_refused(self, kind):
    for decay in (1.1, -0.1, math.nan):
      with pytest.raises(ValueError, match='`decay` must be'):
        kind(decay=decay)

  def _by_release(self, option, releases):
    memory = option.initialize(_SHAPES)
    for release in releases:
      memory = option.next(memory, release)
      yield release, option.values(memory, _SHAPES, release).numpy()

  def test_momentum_as_by_hand(self):
    velocity = np.zeros(_DIM)
    for release, values in self._by_release(filters.Momentum(0.6), _releases()):
      j = release.coordinates
      velocity[j] = 0.6 * velocity[j] + release.values  # Others don't forget.
      np.testing.assert_allclose(values, velocity[j], rtol=1e-5)

  def test_low_pass_as_by_hand(self):
    heard = [[] for _ in range(_DIM)]
    for release, values in self._by_release(filters.LowPass(0.6), _releases(12)):
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
    everywhere = np.arange(_DIM, dtype=np.int32)
    constant = [state_lib.Release(everywhere, np.full(_DIM, 0.3), np.zeros(_DIM))] * 4
    for _, values in self._by_release(filters.LowPass(0.9), constant):
      np.testing.assert_allclose(values, 0.3, rtol=1e-5)
    noise = [
        state_lib.Release(everywhere, rng.normal(size=_DIM), np.ones(_DIM))
        for _ in range(200)
    ]
    late = [values for _, values in self._by_release(filters.LowPass(0.9), noise)][100:]
    # Variance (1 - decay) / 2 of white noise after y = decay y + (1 - decay) (x + x') / 2:
    # 0.05, of 1000 values that are about ten rounds alike: a relative error of 14 %.
    assert np.var(late) == pytest.approx(0.05, rel=0.6)

  def test_shrinkage_as_by_hand(self):
    releases = _releases()
    for t, (release, values) in enumerate(
        self._by_release(filters.Shrinkage(0.8), releases)
    ):
      estimates = numpy_reference.energies(releases[: t + 1], _SHAPES, 0.8)[2]
      energy = np.maximum(estimates[release.coordinates], 0)
      expected = release.values * energy / (energy + release.stddev**2)
      np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-7)
