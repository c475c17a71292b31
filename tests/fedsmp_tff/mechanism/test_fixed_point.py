"""Tests of the integers that a secure sum adds."""

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff.mechanism import fixed_point as fixed_point_lib


def _round_trip(fixed_point, values_of_clients):
  encoded = [fixed_point.encode(tf.constant(v)) for v in values_of_clients]
  total = sum(integers.numpy().astype(object) for integers, _ in encoded)
  assert all(total < 2 ** (8 * fixed_point.dtype.size - 1))
  decoded = fixed_point.decode_sum(
      tf.constant(total.astype(fixed_point.dtype.as_numpy_dtype)),
      tf.constant(len(values_of_clients)),
  )
  return decoded.numpy(), sum(int(count) for _, count in encoded)


class TestComputation:

  @pytest.mark.parametrize('clients', [1, 2, 3, 10, 64, 100, 1000, 100_000])
  def test_default_bits_are_the_most_that_fit_in_int32(self, clients):
    bits = fixed_point_lib.default_bits(clients)
    assert fixed_point_lib.FixedPoint(bits, 1.0, clients).dtype == tf.int32
    largest = clients * 2 * (2 ** (bits - 1) - 1)
    # One bit more would double the sum; a power of two of clients just misses.
    assert largest < 2**31 <= 2 * largest + 4 * clients

  def test_more_bits_take_int64(self):
    assert fixed_point_lib.FixedPoint(40, 1.0, 1000).dtype == tf.int64

  @pytest.mark.parametrize('bits', [7, 0, -3, 60, 8.0])
  def test_refuses_bits(self, bits):
    with pytest.raises(ValueError, match='`bits` must be an integer from 8'):
      fixed_point_lib.FixedPoint(bits, 1.0, 100)

  @pytest.mark.parametrize('bound', [0, -1, float('inf'), float('nan')])
  def test_refuses_bound(self, bound):
    with pytest.raises(ValueError, match='value_bound'):
      fixed_point_lib.FixedPoint(20, bound, 100)


class TestExecution:

  @pytest.mark.parametrize('bits, clients', [(8, 7), (24, 100), (27, 10), (40, 9)])
  def test_sum_is_within_half_a_step_a_client(self, bits, clients):
    fixed_point = fixed_point_lib.FixedPoint(bits, 2.5, clients)
    values = np.random.default_rng(0).uniform(-2.5, 2.5, (clients, 200))
    decoded, saturated = _round_trip(fixed_point, values)
    assert saturated == 0
    # 1e-9 of a step for float64's own rounding.
    bound = clients * fixed_point.step * (0.5 + 1e-9)
    assert np.max(np.abs(decoded - values.sum(axis=0))) <= bound

  @pytest.mark.parametrize('clients', [1, 100, 128, 100_000])
  def test_extremes_neither_overflow_nor_wrap(self, clients):
    fixed_point = fixed_point_lib.FixedPoint(
        fixed_point_lib.default_bits(clients), 3.0, clients
    )
    values = tf.constant([3.0, -3.0, 1e300, -1e300], tf.float64)
    integers, saturated = fixed_point.encode(values)
    assert int(saturated) == 2
    assert np.max(integers) == fixed_point.max_input and np.min(integers) == 0
    # Python's integers don't wrap; int32 must hold what they hold.
    total = clients * integers.numpy().astype(object)
    assert max(total) < 2**31
    decoded = fixed_point.decode_sum(
        tf.constant(total.astype(np.int32)), tf.constant(clients)
    )
    np.testing.assert_allclose(
        decoded, clients * np.array([3.0, -3.0, 3.0, -3.0]), rtol=1e-12
    )

  def test_zero_is_exact(self):
    decoded, _ = _round_trip(fixed_point_lib.FixedPoint(24, 2.12, 100), np.zeros((100, 3)))
    np.testing.assert_array_equal(decoded, np.zeros(3))
