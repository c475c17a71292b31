"""Tests of cutting a pool into clients, and of the texts on the owners of data."""

import numpy as np
import pytest

from tasks import errors
from tasks.datasets import task as task_lib


def _examples(num):
  return np.arange(num), -np.arange(num)


def _cut(num_public, num_validation, seed=0, num_clients=4, dirichlet=None):
  split = task_lib.Split(seed, num_public, num_validation)
  return task_lib.cut_pool(_examples(50), _examples(7), num_clients, 'made up', split, dirichlet)


class TestExecution:

  @pytest.mark.parametrize('dirichlet', [None, 0.1])
  @pytest.mark.parametrize('num_public, num_validation', [(0, 0), (1, 0), (13, 5), (0, 4)])
  def test_public_and_validation_examples_leave_the_pool(
      self, num_public, num_validation, dirichlet
  ):
    data = _cut(num_public, num_validation, dirichlet=dirichlet)
    public = [] if data.public is None else list(data.public[0])
    validation = list(data.test[0]) if num_validation else []
    assert len(public) == num_public and len(validation) == num_validation
    assert (data.public is None) == (num_public == 0)
    assert data.has_validation == bool(num_validation)
    sizes = [len(x) for x, _ in data.clients]
    assert max(sizes) - min(sizes) <= 1
    client_examples = np.concatenate([x for x, _ in data.clients])
    assert sorted([*client_examples, *public, *validation]) == list(range(50))
    assert all(np.array_equal(y, -x) for x, y in [*data.clients, data.test])
    assert list(client_examples) != sorted(client_examples)  # Shuffled: the partition is IID.
    # Public examples stay as validation examples are added.
    assert not num_public or public == list(_cut(num_public, 0).public[0])

  def test_a_pool_has_no_owners(self):
    data = _cut(13, 5)
    assert not data.test_owners.ids and not data.public_owners.ids
    assert len(set(data.client_ids)) == len(data.clients) == 4
    assert not data.test_outside_guarantee
    # The sizes of an even cut follow from the pool's.
    rows = dict(data.rows())
    assert rows['data'].endswith(
        '; 5 of them for VALIDATION in place of the test set; 4 clients with 8 to 8 examples each'
    )
    assert rows['public set'].startswith('13 examples without owners')
    assert rows['validation'].startswith('5 examples without owners')

  def test_partition_and_digest_follow_seed_and_sizes(self):
    # Two equal digests tell that a client is the same client in both runs.
    cuts = [
        (5, 0), (0, 5), (5, 1), (5, 0, 2), (5, 0, 0, 7), (5, 0, 0, 4, 0.1), (5, 0, 0, 4, 0.6),
        (5, 0, 2, 4, 0.1),
    ]
    assert len({_cut(*cut).split_digest for cut in cuts}) == len(cuts)
    data, again, other = (_cut(5, 0, seed) for seed in (0, 0, 2))
    assert data.split_digest == again.split_digest
    np.testing.assert_array_equal(data.clients[0][0], again.clients[0][0])
    assert not np.array_equal(data.clients[0][0], other.clients[0][0])

  def test_an_even_cut_equals_that_of_earlier_versions(self):
    # The digest is in ledgers and in config.json of runs that may resume.
    order = np.random.default_rng(3).permutation(50)
    data = _cut(5, 2, seed=3)
    assert data.split_digest == task_lib.digest_of_split(order.astype(np.int64), 4, 5, 2)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in data.clients]), order[7:])

  def test_skew_is_in_the_plan_and_moves_only_clients(self):
    labels = np.arange(50) % 5
    cuts = [
        task_lib.cut_pool(
            (np.arange(50), labels), _examples(7), 9, 'made up', task_lib.Split(0, 5), dirichlet
        )
        for dirichlet in (None, 0.1)
    ]
    even, skewed = cuts
    np.testing.assert_array_equal(even.public[0], skewed.public[0])
    assert [len(x) for x, _ in even.clients] == [len(x) for x, _ in skewed.clients]
    assert all(np.array_equal(y, labels[x]) for x, y in skewed.clients)
    assert len({*skewed.clients[0][1]}) < len({*even.clients[0][1]})
    assert dict(skewed.rows())['data'] == (
        'made up; labels of clients skewed by Dirichlet(0.1); 9 clients with 5 to 5 examples each'
    )
    assert 'Dirichlet(0.1)' in skewed.as_dict()['data_source']

  @pytest.mark.parametrize(
      'sizes, flags', [((50, 0), '--public_examples=50'),
                       ((40, 10), '--public_examples=40 --validation_examples=10')],
  )
  def test_too_many_public_examples_are_refused(self, sizes, flags):
    with pytest.raises(errors.InputError, match=f'{flags} would take all of the 50'):
      _cut(*sizes)

  def test_data_of_unknown_owners_count_as_of_clients(self):
    data = task_lib.TaskData([_examples(3), _examples(4)], _examples(5), _examples(6), 'made up')
    assert data.test_outside_guarantee and data.as_dict()['test_outside_guarantee']
    assert data.rows() == [
        ('data', 'made up; 2 clients'),
        ('test set', 'from unknown owners, OUTSIDE (epsilon, delta)'),
        ('public set', '6 examples from unknown owners'),
    ]

  @pytest.mark.parametrize('name', ['test_owners', 'public_owners'])
  def test_owners_need_the_names_of_all_clients(self, name):
    owners = {name: task_lib.Owners('by ann', frozenset(['ann']))}
    with pytest.raises(errors.InputError, match='`client_ids` must name all 1 clients.*Found 0'):
      task_lib.TaskData([_examples(3)], _examples(5), None, 'made up', **owners)


@pytest.mark.parametrize('num, epochs', [(4000, 8), (1000, 8), (300, 27), (100, 80), (1, 80)])
def test_fewer_public_examples_take_more_epochs(num, epochs):
  schedule = task_lib.Pretraining(epochs=8, batch_size=4)
  assert schedule.for_examples(num) == task_lib.Pretraining(epochs=epochs, batch_size=4)
