"""Tests of which coordinates a round keeps."""

import math

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers


class TestComputation:

  @pytest.mark.parametrize('ratio, dim, num', [
      (0.05, 1000, 50), (0.005, 1663370, 8317), (1e-9, 1000, 1), (1.0, 7, 7)
  ])
  def test_num_kept_is_the_ratio_times_dim(self, ratio, dim, num):
    assert sparsifiers.RandK(ratio).num_kept(dim) == num

  @pytest.mark.parametrize('options, match', [
      *((dict(compression_ratio=p), 'compression_ratio.*Found') for p in (0, -0.1, 1.01, math.nan)),
      *((dict(num=num), '`num` must be a positive integer') for num in (0, -1, 2.5)),
      *((dict(num=3, mask_rounds=h), '`mask_rounds` must be a pos') for h in (0, -1, 1.5, None)),
      (dict(compression_ratio=0.5, num=3), 'Exactly one'),
      (dict(), 'Exactly one'),
  ])
  def test_options_out_of_range_are_refused(self, options, match):
    with pytest.raises(ValueError, match=match):
      sparsifiers.RandK(**options)

  @pytest.mark.parametrize('unbiased, scale', [(True, 4.0), (False, 1.0)])
  def test_randk_multiplies_by_d_over_k_only_where_unbiased(self, unbiased, scale):
    assert sparsifiers.RandK(num=3, unbiased=unbiased).scale(dim=12) == scale

  def test_more_coordinates_than_dim_are_refused(self):
    assert sparsifiers.RandK(num=7).num_kept(7) == 7
    with pytest.raises(ValueError, match='at most the number of coordinates, 7'):
      sparsifiers.RandK(num=8).num_kept(7)

  @pytest.mark.parametrize('lengths, clients, match', [
      ((8, 8), 0, '`public_clients` must be a positive integer'),
      ((8, 8), 1.5, '`public_clients` must be a positive integer'),
      ((8, 8), 9, '`public_clients`=9 must be at most the number of public examples. Found 8'),
      ((3, 4), None, 'same positive length'),
      ((0, 0), None, 'same positive length'),
      (None, None, '`public_examples` must be set'),
  ])
  def test_topk_refuses_bad_public_examples(self, lengths, clients, match):
    examples = lengths and tuple(map(np.zeros, lengths))
    with pytest.raises(ValueError, match=match):
      sparsifiers.TopK(0.5, public_examples=examples, public_clients=clients)


class TestExecution:

  def test_randk_is_uniform_over_all_subsets(self):
    randk = sparsifiers.RandK(num=3)

    @tf.function
    def draw(i):
      return randk.select(6, randomness.fold_in(tf.constant([7, 8], tf.int64), i))

    num_draws, num_subsets = 4000, 20
    draws = tf.map_fn(draw, tf.range(num_draws), fn_output_signature=tf.int32).numpy()
    _, counts = np.unique(np.sort(draws), axis=0, return_counts=True)
    assert len(counts) == num_subsets
    expected = num_draws / num_subsets
    statistic = np.sum((counts - expected) ** 2) / expected
    # Chi-squared with 19 degrees of freedom exceeds 50.8 with probability 1e-4. A
    # Bernoulli mask or a choice of neighbours gives other subsets, or thousands.
    assert statistic < 50.8
