"""Tests of channels: encoding, integer noise, wrap-around and rotation."""

import math

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff.mechanism import channel
from fedsmp_tff.mechanism import integer_noise
from fedsmp_tff.mechanism import mechanism as mechanism_lib


class _Unrotated(channel.LatticeChannel):
  """A channel whose integers a test can foretell."""

  def _rotate(self, values, seed):
    return tf.pad(values, [[0, self.num_integers - self.num_values]])

  def _rotate_back(self, values, seed):
    return values[: self.num_values]


def _lattice(num_values=64, bits=16, r=4, kind=channel.LatticeChannel, num_slots=None):
  """Without noise."""
  mechanism = mechanism_lib.Mechanism(
      r, clipping_norm=1.0, num_slots=num_slots,
      noise=integer_noise.DiscreteGaussian(num_values, bits),
  )
  return kind(mechanism, num_values)


def _seed(*numbers):
  return tf.constant([*numbers, 0][:2], tf.int64)


def _encoder(lattice):
  return tf.function(lambda values, seed: lattice.encode(values, seed, _seed(9, 9)))


def _centered(integers, lattice):
  half = lattice.encoding.modulus // 2
  return (np.asarray(integers, np.int64) + half) % lattice.encoding.modulus - half


def _unit(num, seed=0):
  vector = np.random.default_rng(seed).normal(size=num)
  return vector / np.linalg.norm(vector)


class TestLattice:

  @pytest.mark.parametrize('num', [1, 64])
  def test_decoded_sum_equals_the_sum_up_to_rounding(self, num):
    lattice = _lattice(num_values=num, bits=20)
    encode = _encoder(lattice)
    values = [0.9 * _unit(num, i) for i in range(4)]
    reports = [encode(tf.constant(v), _seed(1, i)) for i, v in enumerate(values)]
    for report in reports:
      assert report.dtype == tf.int32 and report.shape == [lattice.num_integers]
      assert np.min(report) >= 0 and np.max(report) < lattice.encoding.modulus
    total = sum(r.numpy().astype(np.int64) for r in reports) % lattice.encoding.modulus
    decoded = lattice.decode_sum(tf.constant(total, tf.int32), 4, _seed(9, 9))
    # Each of four values is rounded by less than a step; the rotation keeps lengths.
    error = np.linalg.norm(decoded - sum(values))
    assert error <= 4 * lattice.encoding.step * math.sqrt(lattice.num_integers)
    assert error > 0

  def test_only_a_sum_beyond_the_range_wraps_around(self):
    lattice = _lattice(num_values=3, kind=_Unrotated, r=1, num_slots=4)
    encode = _encoder(lattice)
    report = encode(tf.constant([0.999, 0.0, 0.01], tf.float64), _seed(1)).numpy()
    inside = lattice.decode_sum(tf.constant(report), 1, _seed(9, 9)).numpy()
    np.testing.assert_allclose(inside, [0.999, 0, 0.01], atol=2 * lattice.encoding.step)
    four = (4 * report.astype(np.int64)) % lattice.encoding.modulus
    wrapped = lattice.decode_sum(tf.constant(four, tf.int32), 4, _seed(9, 9)).numpy()
    # The range is 2 value_bound wide: six standard deviations of 1/2 of four integers either way.
    np.testing.assert_allclose(wrapped, [3.996 - 6, 0, 0.04], atol=6 * lattice.encoding.step)

  def test_encoding_keeps_the_norm_bound(self):
    # As long as a vector may be, and its values between two integers: one rounding in eleven is too
    # long, and is done again.
    lattice = _lattice(num_values=400, kind=_Unrotated, bits=8, r=4)
    low, share = int(0.05 * lattice.encoding.scale), 0.05 * lattice.encoding.scale % 1
    length = 400 * np.array([low**2, (low + 1) ** 2]) @ [1 - share, share]
    stddev = (2 * low + 1) * math.sqrt(400 * share * (1 - share))
    assert 0 < lattice.encoding.squared_norm_bound - length < 2 * stddev
    encode = _encoder(lattice)
    norms = []
    for i in range(300):
      integers = _centered(encode(tf.constant(np.full(400, 0.05)), _seed(2, i)), lattice)
      assert set(integers) <= {low, low + 1}
      norms.append(np.sum(integers**2))
    # Without the condition some 27 of 300 would be longer.
    assert max(norms) <= lattice.encoding.squared_norm_bound
    # The condition takes the upper tail away: a fifth of a standard deviation.
    assert length - 0.5 * stddev < np.mean(norms) < length

  def test_too_long_a_vector_is_encoded_as_zero(self):
    lattice = _lattice(num_values=8)
    report = _encoder(lattice)(tf.constant(5 * _unit(8)), _seed(1))
    assert not np.any(report)

  def test_the_rotation_spreads_one_large_value(self):
    lattice = _lattice(num_values=1024)
    vector = np.zeros(1024)
    vector[3] = 1.0
    integers = _centered(_encoder(lattice)(tf.constant(vector), _seed(1)), lattice)
    assert np.abs(integers).max() < 0.1 * lattice.encoding.scale
    other = lattice.encode(tf.constant(vector), _seed(1), _seed(8, 8))
    assert np.any(_centered(other, lattice) != integers)

  @pytest.mark.parametrize('bits', [8, 30])
  def test_decoding_centers_sums_around_zero(self, bits):
    # Exactly: one step off would be within every bound on rounding.
    lattice = _lattice(num_values=6, kind=_Unrotated, bits=bits)
    half = lattice.encoding.modulus // 2
    total = tf.constant([0, 1, lattice.encoding.modulus - 1, half - 1, half, half + 1], tf.int32)
    decoded = lattice.decode_sum(total, 4, _seed(9, 9)).numpy()
    steps = np.array([0, 1, -1, half - 1, -half, 1 - half])
    np.testing.assert_array_equal(decoded, steps * lattice.encoding.step)
