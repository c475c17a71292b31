"""Tests of masks by past releases."""

import math

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import sparsifiers
from fedsmp_tff.post_processing import released_topk
from tests.support import releases as releases_lib


def _chosen(option, update, memory, shapes):
  """What a sparsifier that takes public data keeps, as an array."""
  return option.choose(sparsifiers.Known(shapes, None, memory, lambda: update)).numpy()


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
    release = releases_lib.release(np.arange(releases_lib.DIM, dtype=np.int32), values, np.full(releases_lib.DIM, 0.1))
    memory = releases_lib.remembered(option, [release])
    for seed in range(5):
      kept = option.choose(sparsifiers.Known(releases_lib.SHAPES, tf.constant([seed, 0], tf.int64), memory))
      assert kept.dtype == tf.int32 and list(kept.numpy()) == [1, 6, 8]

  @pytest.mark.parametrize('num, explore', [(1, 0.5), (4, 0.5), (10, 0.3), (5, 1.0)])
  def test_k_distinct_ascending_coordinates(self, num, explore):
    option = released_topk.ReleasedTopK(num=num, explore=explore)
    for releases in ([], releases_lib.some(4)):
      kept = option.choose(
          sparsifiers.Known(
              releases_lib.SHAPES, tf.constant([7, 1], tf.int64), releases_lib.remembered(option, releases)
          )
      ).numpy()
      assert len(set(kept)) == num and np.all(np.diff(kept) > 0)
      assert kept.min() >= 0 and kept.max() < releases_lib.DIM

  def test_exploration_goes_by_tensors(self):
    # Before any release both tensors have half of it: of 4000 draws of one coordinate
    # 2000 with stddev sqrt(1000) = 32, within five of them. After a release that finds all
    # energy in the second, it has three quarters: 3000 with stddev 27.
    option = released_topk.ReleasedTopK(num=1, explore=1.0)
    loud = releases_lib.release(
        np.arange(releases_lib.DIM, dtype=np.int32), np.repeat([0.0, 1.0], [4, 6]), np.zeros(releases_lib.DIM)
    )

    @tf.function
    def draws(memory):
      return tf.map_fn(
          lambda i: option.choose(sparsifiers.Known(releases_lib.SHAPES, tf.stack([i, 5]), memory))[0],
          tf.range(4000, dtype=tf.int64), fn_output_signature=tf.int32,
      )

    for releases, share in (([], 0.5), ([loud], 0.75)):
      counts = np.bincount(draws(releases_lib.remembered(option, releases)), minlength=releases_lib.DIM)
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
    release = releases_lib.release(np.arange(releases_lib.DIM, dtype=np.int32), values, np.zeros(releases_lib.DIM))
    found = _chosen(option, public, releases_lib.remembered(option, [release]), releases_lib.SHAPES)
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
      found = _chosen(option, update, option.initial_memory(14), shapes)
      assert set(found) == set(np.argsort(-expected)[:num])
