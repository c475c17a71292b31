"""Tests of the channel of real noise: the integers that a secure sum adds."""

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff.mechanism import channel
from fedsmp_tff.mechanism import fixed_point as fixed_point_lib


def _round_trip(fixed_point, values_of_clients):
  encoded = [fixed_point.encode(tf.constant(v), None, None) for v in values_of_clients]
  total = sum(integers.numpy().astype(object) for integers in encoded)
  assert all(total < 2 ** (8 * fixed_point.dtype.size - 1))
  return fixed_point.decode_sum(
      tf.constant(total.astype(fixed_point.dtype.as_numpy_dtype)),
      tf.constant(len(values_of_clients)),
      None,
  ).numpy()


class TestExecution:

  @pytest.mark.parametrize('bits, clients', [(8, 7), (24, 100), (27, 10), (40, 9)])
  def test_sum_is_within_half_a_step_a_client(self, bits, clients):
    fixed_point = channel.GaussianChannel(bits, 2.5, clients)
    values = np.random.default_rng(0).uniform(-2.5, 2.5, (clients, 200))
    decoded = _round_trip(fixed_point, values)
    # 1e-9 of a step for float64's own rounding.
    bound = clients * fixed_point.step * (0.5 + 1e-9)
    assert np.max(np.abs(decoded - values.sum(axis=0))) <= bound

  @pytest.mark.parametrize('clients', [1, 100, 128, 100_000])
  def test_extremes_neither_overflow_nor_wrap(self, clients):
    fixed_point = channel.GaussianChannel(
        fixed_point_lib.default_bits(clients), 3.0, clients
    )
    values = tf.constant([3.0, -3.0, 1e300, -1e300], tf.float64)
    integers = fixed_point.encode(values, None, None)
    assert np.max(integers) == fixed_point.max_input and np.min(integers) == 0
    # Python's integers don't wrap; int32 must hold what they hold.
    total = clients * integers.numpy().astype(object)
    assert max(total) < 2**31
    decoded = fixed_point.decode_sum(
        tf.constant(total.astype(np.int32)), tf.constant(clients), None
    )
    np.testing.assert_allclose(
        decoded, clients * np.array([3.0, -3.0, 3.0, -3.0]), rtol=1e-12
    )

  def test_zero_is_exact(self):
    decoded = _round_trip(channel.GaussianChannel(24, 2.12, 100), np.zeros((100, 3)))
    np.testing.assert_array_equal(decoded, np.zeros(3))
