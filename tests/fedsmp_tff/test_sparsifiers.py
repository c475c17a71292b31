"""Tests of which coordinates a round keeps."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import local_training
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from tests.support import numpy_reference

_EXAMPLES = (np.zeros((3, 2), np.float32), np.zeros(3, np.float32))


class TestComputation:

  @pytest.mark.parametrize(
      'kept, dim, expected',
      [(0.05, 1000, 50), (0.005, 1663370, 8317), (1e-9, 1000, 1), (1.0, 7, 7)],
  )
  def test_num_kept_from_ratio(self, kept, dim, expected):
    assert sparsifiers.RandK(kept).num_kept(dim) == expected

  @pytest.mark.parametrize('ratio', [0, -0.1, 1.01, 2, float('nan')])
  @pytest.mark.parametrize('kind', [sparsifiers.RandK, sparsifiers.TopK])
  def test_refuses_ratio(self, kind, ratio):
    with pytest.raises(ValueError, match='compression_ratio.*Found'):
      kind(ratio)

  @pytest.mark.parametrize('num', [0, -1, 2.5])
  def test_refuses_num(self, num):
    with pytest.raises(ValueError, match='`num` must be a positive integer'):
      sparsifiers.RandK(num=num)

  @pytest.mark.parametrize('rounds', [0, -1, 1.5, None])
  def test_refuses_mask_rounds(self, rounds):
    with pytest.raises(ValueError, match='`mask_rounds` must be a positive integer'):
      sparsifiers.RandK(num=3, mask_rounds=rounds)

  @pytest.mark.parametrize(
      'clients, match',
      [
          (0, '`public_clients` must be a positive integer'),
          (1.5, '`public_clients` must be a positive integer'),
          (9, '`public_clients`=9 must be at most the number of public examples. Found 8'),
      ],
  )
  def test_refuses_pseudo_clients(self, clients, match):
    examples = (np.zeros(8), np.zeros(8))
    with pytest.raises(ValueError, match=match):
      sparsifiers.TopK(0.5, public_examples=examples, public_clients=clients)
    assert sparsifiers.TopK(0.5, public_examples=examples, public_clients=8).public_clients == 8

  def test_refuses_both_and_neither(self):
    with pytest.raises(ValueError, match='Exactly one'):
      sparsifiers.RandK(0.5, 3)
    with pytest.raises(ValueError, match='Exactly one'):
      sparsifiers.RandK()

  def test_refuses_more_than_there_are(self):
    with pytest.raises(ValueError, match='at most the number of coordinates, 7'):
      sparsifiers.RandK(num=8).num_kept(7)

  def test_scale_is_d_over_k_for_randk_only(self):
    assert sparsifiers.RandK(num=3).scale(12) == 4.0
    assert sparsifiers.TopK(num=3, public_examples=_EXAMPLES).scale(12) == 1.0
    assert sparsifiers.Dense().scale(12) == 1.0

  def test_topk_refuses_missing_or_uneven_public_examples(self):
    with pytest.raises(ValueError, match='public_examples'):
      sparsifiers.TopK(0.5)
    with pytest.raises(ValueError, match='same positive length'):
      sparsifiers.TopK(0.5, public_examples=(np.zeros(3), np.zeros(4)))
    with pytest.raises(ValueError, match='same positive length'):
      sparsifiers.TopK(0.5, public_examples=(np.zeros(0), np.zeros(0)))

  def test_topk_trains_as_clients_do_or_as_told(self):
    clients = local_training.LocalTraining(
        tff.learning.optimizers.build_sgdm(0.1), 5, epochs=3
    )
    own = dataclasses.replace(clients, epochs=None, steps=9)
    for told, expected in ((None, clients), (own, own)):
      topk = sparsifiers.TopK(0.5, public_examples=_EXAMPLES, training=told, public_clients=2)
      found = topk.public_training(clients)
      assert found.training is expected and found.clients == 2
      for part, given in zip(found.examples, _EXAMPLES):
        np.testing.assert_array_equal(part, given)


class TestExecution:

  def test_randk_keeps_k_distinct_coordinates(self):
    chosen = sparsifiers.RandK(num=400).select(1000, tf.constant([1, 2], tf.int64))
    chosen = chosen.numpy()
    assert chosen.dtype == np.int32
    assert len(chosen) == len(set(chosen)) == 400
    assert chosen.min() >= 0 and chosen.max() < 1000

  def test_randk_follows_its_seed(self):
    randk = sparsifiers.RandK(num=20)
    one, again, other = (
        randk.select(1000, tf.constant(s, tf.int64)).numpy()
        for s in ([1, 2], [1, 2], [1, 3])
    )
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)

  def test_randk_is_uniform_over_all_subsets(self):
    randk = sparsifiers.RandK(num=3)

    @tf.function
    def draw(i):
      return randk.select(6, randomness.fold_in(tf.constant([7, 8], tf.int64), i))

    num_draws, num_subsets = 10_000, 20
    draws = tf.map_fn(
        draw, tf.range(num_draws), fn_output_signature=tf.int32
    ).numpy()
    _, counts = np.unique(np.sort(draws), axis=0, return_counts=True)
    assert len(counts) == num_subsets
    expected = num_draws / num_subsets
    statistic = np.sum((counts - expected) ** 2) / expected
    # Chi-squared with 19 degrees of freedom exceeds 50.8 with probability 1e-4. A
    # Bernoulli mask or a choice of neighbours gives other subsets, or thousands.
    assert statistic < 50.8

  def test_topk_keeps_the_largest_magnitudes(self):
    vector = np.random.default_rng(0).normal(size=500).astype(np.float32)
    topk = sparsifiers.TopK(num=30, public_examples=_EXAMPLES)
    np.testing.assert_array_equal(
        np.sort(topk.select(tf.constant(vector))), numpy_reference.top_coordinates(vector, 30)
    )

  def test_topk_breaks_ties_by_the_lower_coordinate(self):
    topk = sparsifiers.TopK(num=3, public_examples=_EXAMPLES)
    vector = tf.constant([0.0, -2.0, 1.0, 2.0, -1.0, 1.0])
    assert sorted(topk.select(vector).numpy()) == [1, 2, 3]
    assert sorted(topk.select(tf.zeros(9)).numpy()) == [0, 1, 2]

  def test_topk_takes_nan_for_zero(self):
    topk = sparsifiers.TopK(num=2, public_examples=_EXAMPLES)
    vector = tf.constant([float('nan'), 1.0, float('nan'), float('inf')])
    assert sorted(topk.select(vector).numpy()) == [1, 3]
