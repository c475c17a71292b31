"""Tests of the numbers of fixed point."""

import pytest

from fedsmp_tff.mechanism import fixed_point as fixed_point_lib


class TestComputation:

  @pytest.mark.parametrize('clients', [1, 2, 3, 10, 64, 100, 1000, 100_000])
  def test_default_bits_are_the_most_that_fit_in_int32(self, clients):
    bits = fixed_point_lib.default_bits(clients)
    assert fixed_point_lib.FixedPoint(bits, 1.0, clients).wire_bits == 32
    largest = clients * 2 * (2 ** (bits - 1) - 1)
    # One bit more would double the sum; a power of two of clients just misses.
    assert largest < 2**31 <= 2 * largest + 4 * clients

  def test_more_bits_take_int64(self):
    assert fixed_point_lib.FixedPoint(40, 1.0, 1000).wire_bits == 64

  @pytest.mark.parametrize('bits', [7, 0, -3, 60, 8.0])
  def test_refuses_bits(self, bits):
    with pytest.raises(ValueError, match='`bits` must be an integer from 8'):
      fixed_point_lib.FixedPoint(bits, 1.0, 100)

  @pytest.mark.parametrize('bound', [0, -1, float('inf'), float('nan')])
  def test_refuses_bound(self, bound):
    with pytest.raises(ValueError, match='value_bound'):
      fixed_point_lib.FixedPoint(20, bound, 100)
