"""Tests of seeds."""

import numpy as np
import tensorflow as tf

from fedsmp_tff import randomness


class TestExecution:

  def test_fresh_seeds_differ_at_each_run_of_one_graph(self):
    draw = tf.function(randomness.fresh_seed)
    seeds = {tuple(draw().numpy()) for _ in range(1000)}
    # 126 random bits each: two of 1000 are equal with probability 1e-32.
    assert len(seeds) == 1000

  def test_every_bit_of_a_fresh_seed_is_random(self):
    draw = tf.function(randomness.fresh_seed)
    num = 2000
    seeds = np.array([draw().numpy() for _ in range(num)])
    bits = (seeds[:, :, None] >> np.arange(63)) & 1
    assert np.all(seeds >= 0)
    # A fair bit's mean has standard deviation 1 / (2 sqrt(n)); that one of 126
    # fair bits is 5.5 of them off has a probability of 5e-6. Not seeded.
    off = np.abs(bits.mean(axis=0) - 0.5) * 2 * np.sqrt(num)
    assert np.max(off) < 5.5

  def test_folded_seeds_repeat_and_differ(self):
    seed = tf.constant([3, 4], tf.int64)
    fold = tf.function(randomness.fold_in)
    seeds = [tuple(fold(seed, tf.constant(i)).numpy()) for i in range(1000)]
    again = [tuple(fold(seed, tf.constant(i)).numpy()) for i in range(1000)]
    assert seeds == again
    assert len(set(seeds)) == 1000

  def test_seed_and_data_both_matter(self):
    one = randomness.fold_in(tf.constant([1, 2], tf.int64), 5).numpy()
    other = randomness.fold_in(tf.constant([2, 2], tf.int64), 5).numpy()
    assert not np.array_equal(one, other)
