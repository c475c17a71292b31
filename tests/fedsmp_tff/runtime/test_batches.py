"""Tests of the sums that workers make of their own clients' integers."""

import numpy as np
import pytest

from fedsmp_tff.runtime import batches


def _run(sums, values, start=0):
  """The batch's results, where each client gives its value to each sum."""
  return batches.run(
      iter([[np.asarray(value)] * len(sums) for value in values]),
      range(start, start + len(values)),
      sums,
  )


class TestComputation:

  @pytest.mark.parametrize('value', [-1, 101])
  @pytest.mark.parametrize('modulus', [None, 101])
  def test_range_of_each_client_is_checked_before_adding(self, value, modulus):
    sum_ = batches.IntegerSum(np.zeros([2], np.int32), np.int32(100), modulus)
    # The sum of a batch with -1 and 60 would be in the range.
    values = [np.array([10, value], np.int32), np.array([50, 60], np.int32)]
    with pytest.raises(ValueError, match=f'^Client 7 .*{value}.* declared range 0 to 100'):
      _run([sum_], values, start=7)

  def test_an_error_names_the_client(self):
    def clients():
      yield []
      raise KeyError('x')

    with pytest.raises(KeyError) as raised:
      batches.run(clients(), [3, 4], [])
    assert raised.value.__notes__ == ['(from client 4 of the round, counted from 0)']


class TestExecution:

  @pytest.mark.parametrize('modulus', [None, 2**31 - 1, 1000])
  def test_a_sum_does_not_depend_on_batches(self, modulus):
    # Near the type's limit, so that both kinds of sum pass it: one wraps, as int32, and one
    # is modulo its modulus.
    limit = (modulus or 2**31) - 1
    values = np.random.default_rng(1).integers(limit - limit // 4, limit, 60, dtype=np.int32)
    sum_ = batches.IntegerSum(np.zeros([], np.int32), np.int32(limit), modulus)
    expected = int(values.sum(dtype=np.int64)) % (modulus or 2**32)
    for size in (1, 2, 7, 60):
      total = sum_.zero
      for start in range(0, 60, size):
        [part] = _run([sum_], values[start : start + size])
        assert part.dtype == np.int32
        total = sum_.add(total, part)
      assert total.dtype == np.int32 and int(total) % (modulus or 2**32) == expected
