"""Tests of seeds."""

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import randomness


class TestExecution:

  def test_every_bit_of_a_fresh_seed_is_random(self):
    draw = tf.function(randomness.fresh_seed)
    num = 4000
    seeds = np.array([draw().numpy() for _ in range(num)])
    assert len(np.unique(seeds, axis=0)) == num
    bits = (seeds[:, :, None] >> np.arange(63)) & 1
    assert np.all(seeds >= 0)
    # A fair bit's mean has standard deviation 1 / (2 sqrt(n)); that one of 126
    # fair bits is 6.2 of them off has a probability of 6e-8. Not seeded.
    off = np.abs(bits.mean(axis=0) - 0.5) * 2 * np.sqrt(num)
    assert np.max(off) < 6.2
    # Each of 7,875 pairs of bits agrees in half of the draws; that one is 7 standard
    # deviations off has a probability of 2e-8.
    signs = 2 * bits.reshape(num, 126) - 1
    assert np.max(np.abs(np.triu(signs.T @ signs, 1))) < 7 * np.sqrt(num)

  def test_fresh_seeds_are_distinct(self):
    @tf.function
    def draw(num):
      return tf.map_fn(
          lambda _: randomness.fresh_seed(), tf.range(num), fn_output_signature=tf.int64
      )

    # Among 6,000 seeds of 20 bits, however well they are mixed, two would be alike except with a
    # probability of e^-17; with 32 bits, 0.4 % of the time; with 126 bits, never.
    seeds = draw(6000).numpy()
    assert len(np.unique(seeds, axis=0)) == 6000
    assert all(len(np.unique(word)) == 6000 for word in seeds.T)


_WORD = 2**32 - 1


def _philox(counter, key):
  """A block of Philox 4x32-10 (Salmon et al. 2011), in Python's integers."""
  for _ in range(10):
    one, other = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
    counter = [
        (other >> 32) ^ counter[1] ^ key[0], other & _WORD,
        (one >> 32) ^ counter[3] ^ key[1], one & _WORD,
    ]
    key = [(key[0] + 0x9E3779B9) & _WORD, (key[1] + 0xBB67AE85) & _WORD]
  return counter


def _halves(number):
  return [number & _WORD, (number >> 32) & _WORD]


class TestFoldIn:

  @pytest.mark.parametrize('seed', [[5], [5, 6, 7], 5])
  def test_a_seed_of_another_shape_is_refused(self, seed):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match='shape'):
      randomness.fold_in(tf.constant(seed, tf.int64), 0)

  @pytest.mark.parametrize('seed', [[0, 0], [3, -1], [-1, 4], [-5, 2**62 + 7]])
  @pytest.mark.parametrize('data', [0, 7, -(2**62), 2**63 - 1])
  def test_fold_in_equals_a_philox_block(self, seed, data):
    # TensorFlow's way from a seed to a key and the upper half of a counter: a permutation.
    mixed = _philox([h for word in seed for h in _halves(word)], [0x3EC8F720, 0x02461E29])
    tweak = _halves(int.from_bytes(b'fold_in!', 'big'))
    block = _philox([*_halves(data), *mixed[2:]], [a ^ b for a, b in zip(mixed[:2], tweak)])
    expected = np.array(block, np.uint32).view(np.int64)
    for by_xla in (False, True):  # Which drops the upper halves of seeds in TensorFlow's own ways.
      fold_in = tf.function(randomness.fold_in, jit_compile=by_xla)
      np.testing.assert_array_equal(fold_in(tf.constant(seed, tf.int64), data), expected)
