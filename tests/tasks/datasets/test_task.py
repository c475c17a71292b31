"""Tests of cutting a pool into clients, and of what is said of whose data are."""

import numpy as np
import pytest

from tasks import errors
from tasks.datasets import task as task_lib


def _examples(num):
  return np.arange(num), -np.arange(num)


def _cut(num_public, num_validation, seed=0, num_clients=4):
  split = task_lib.Split(seed, num_public, num_validation)
  return task_lib.cut_pool(_examples(50), _examples(7), num_clients, 'made up', split)


class TestExecution:

  @pytest.mark.parametrize('num_public, num_validation', [(0, 0), (1, 0), (13, 5), (0, 4)])
  def test_public_and_validation_examples_leave_the_pool(self, num_public, num_validation):
    data = _cut(num_public, num_validation)
    taken = [] if data.public is None else list(data.public[0])
    validation_examples = list(data.test[0]) if num_validation else []
    assert len(taken) == num_public and len(validation_examples) == num_validation
    assert (data.public is None) == (num_public == 0) and data.has_validation == bool(num_validation)
    of_clients = np.concatenate([x for x, _ in data.clients])
    assert sorted([*of_clients, *taken, *validation_examples]) == list(range(50))
    assert all(np.array_equal(y, -x) for x, y in [*data.clients, data.test])
    assert list(of_clients) != sorted(of_clients)  # Shuffled: the partition is IID.

  def test_a_pool_is_nobody_s(self):
    data = _cut(13, 5)
    assert not data.test_owners.ids and not data.public_owners.ids
    assert len(set(data.client_ids)) == len(data.clients) == 4
    assert not data.test_outside_guarantee
    # The sizes of an even cut follow from the pool's.
    rows = dict(data.rows())
    assert rows['data'].endswith(
        '; 5 of them HELD OUT in place of the test set; 4 clients with 8 to 8 examples each'
    )
    assert rows['public set'].startswith('13 examples without owners')
    assert rows['validation set'].startswith('5 examples without owners')

  def test_public_examples_stay_as_validation_examples_are_added(self):
    np.testing.assert_array_equal(_cut(13, 0).public[0], _cut(13, 5).public[0])

  def test_parts_differ_by_one_at_most(self):
    parts = task_lib.split_evenly(*_examples(59), 6)
    assert sorted(len(x) for x, _ in parts) == [9, 10, 10, 10, 10, 10]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in parts]), np.arange(59))
    assert all(np.array_equal(y, -x) for x, y in parts)

  def test_another_cut_has_another_digest(self):
    # Who sees two equal digests knows that a client is the same client in both.
    cuts = [(5, 0), (0, 5), (5, 1), (5, 0, 2), (5, 0, 0, 7)]
    assert len({_cut(*cut).split_digest for cut in cuts}) == len(cuts)
    assert _cut(5, 0).split_digest == _cut(5, 0).split_digest

  def test_too_many_public_examples(self):
    with pytest.raises(errors.InputError, match='--public_examples=50 would take all of the 50'):
      _cut(50, 0)
    with pytest.raises(errors.InputError, match='--public_examples=40 --validation_examples=10 would take'):
      _cut(40, 10)

  def test_data_of_people_unknown_count_as_the_clients(self):
    data = task_lib.TaskData([_examples(3), _examples(4)], _examples(5), _examples(6), 'made up')
    assert data.test_outside_guarantee and data.as_dict()['test_outside_guarantee']
    assert data.rows() == [
        ('data', 'made up; 2 clients'),
        ('test set', 'of people unknown, OUTSIDE (epsilon, delta)'),
        ('public set', '6 examples of people unknown'),
    ]
