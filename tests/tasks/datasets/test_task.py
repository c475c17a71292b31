"""Tests of cutting data into clients."""

import numpy as np
import pytest

from tasks import errors
from tasks.datasets import task as task_lib
from tasks.datasets import tff_data


def _examples(num):
  return np.arange(num), -np.arange(num)


class TestExecution:

  @pytest.mark.parametrize('num_public', [0, 1, 13])
  def test_public_examples_are_taken_out(self, num_public):
    rest, public = task_lib.take_public(
        *_examples(50), num_public, np.random.default_rng(0)
    )
    taken = [] if public is None else list(public[0])
    assert len(taken) == num_public
    assert sorted([*rest[0], *taken]) == list(range(50))
    np.testing.assert_array_equal(rest[1], -rest[0])
    assert list(rest[0]) != sorted(rest[0])  # Shuffled: the partition is IID.

  def test_parts_differ_by_one_at_most(self):
    parts = task_lib.split_evenly(*_examples(59), 6)
    assert sorted(len(x) for x, _ in parts) == [9, 10, 10, 10, 10, 10]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in parts]), np.arange(59))
    assert all(np.array_equal(y, -x) for x, y in parts)

  def test_public_examples_of_clients(self):
    clients = [(np.full(n, i), np.full(n, -i)) for i, n in enumerate((5, 1, 0, 9))]
    left, public = tff_data.take_public_of_clients(
        clients, 7, np.random.default_rng(0)
    )
    assert len(left) == 4 and len(public[0]) == 7
    together = np.concatenate([*(x for x, _ in left), public[0]])
    assert np.bincount(together, minlength=4).tolist() == [5, 1, 0, 9]
    np.testing.assert_array_equal(public[1], -public[0])

  def test_no_public_examples_or_too_many(self):
    with pytest.raises(errors.InputError, match='--public_examples=50 would take all'):
      task_lib.take_public(*_examples(50), 50, np.random.default_rng(0))
    clients = [_examples(3)]
    rng = np.random.default_rng(0)
    assert tff_data.take_public_of_clients(clients, 0, rng) == (clients, None)
    with pytest.raises(errors.InputError, match='--public_examples=4 would take all'):
      tff_data.take_public_of_clients(clients, 4, rng)
