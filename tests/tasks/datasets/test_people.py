"""Tests that people are clients or set aside, and never both."""

import dataclasses
import json

import numpy as np
import pytest

from tasks import errors
from tasks.datasets import people
from tasks.datasets import task as task_lib
from tests.support import commands
from tests.support import people_task
from tests.support import small_data


def _person(number, num_train=4, num_test=2, eligible=True):
  """A person whose examples are all their number."""
  parts = [(np.full(num, number), np.full(num, -number)) for num in (num_train, num_test)]
  return people.Person(f'person {number}', *parts, eligible)


def _groups(**changes):
  """Six groups of two; the last of each may not be a client."""
  members = {
      f'group {i}': [_person(2 * i), _person(2 * i + 1, eligible=i % 2 == 0)] for i in range(6)
  }
  groups = people.Groups(
      members, test=['group 1'], spare=['group 4', 'group 2', 'group 5'], noun='people'
  )
  return dataclasses.replace(groups, **changes)


def _divide(groups, num_public=0, num_validation=0, per_client=False, seed=0):
  split = task_lib.Split(seed, num_public, num_validation)
  return people.divide(groups, per_client, 'made up', split)


class TestExecution:

  @pytest.mark.parametrize('sizes', [(0,), (7,), (13,), (0, 5), (12, 12)])
  def test_nobody_is_in_two_sets(self, sizes):
    data = _divide(_groups(), *sizes)
    small_data.assert_nobody_is_in_two_sets(data)
    assert not data.test_outside_guarantee
    # Every example is from an owner.
    assert {f'person {i}' for i in data.test[0]} == data.test_owners.ids
    assert [f'person {x[0]}' for x, _ in data.clients] == list(data.client_ids)
    if sizes[0]:
      assert len(data.public[0]) == sizes[0]
      assert {f'person {i}' for i in data.public[0]} <= data.public_owners.ids

  def test_groups_are_taken_whole_and_in_order(self):
    data = _divide(_groups(), 13, 4)
    # A group has 12 examples.
    assert data.public_owners.ids == {'person 8', 'person 9', 'person 4', 'person 5'}
    assert data.test_owners.ids == {'person 10', 'person 11'}
    # Clients are neither the people of the test set, who are set apart all the same, nor people
    # who are not eligible; they have all of their examples.
    assert data.client_ids == ('person 0', 'person 1', 'person 6')
    assert [len(x) for x, _ in data.clients] == [6] * 3
    np.testing.assert_array_equal(np.sort(_divide(_groups()).test[0]), [2] * 6 + [3] * 6)

  def test_validation_groups_are_set_aside_in_every_run(self):
    groups = _groups(spare=['group 4', 'group 5'], validation=['group 2'])
    tested, validated = _divide(groups, 7), _divide(groups, 7, 4)
    assert validated.test_owners.ids == {'person 4', 'person 5'}
    assert tested.client_ids == validated.client_ids
    assert not {'person 4', 'person 5'} & {*tested.client_ids, *tested.test_owners.ids}
    assert tested.split_digest == validated.split_digest

  def test_seeds_change_examples_and_not_owners(self):
    def divided(seed):
      data = _divide(_groups(), 13, 4, seed=seed)
      return data.client_ids, data.test_owners, data.public_owners, list(data.public[0])

    assert divided(0) == divided(0)
    assert divided(0)[:3] == divided(1)[:3] and divided(0)[3] != divided(1)[3]

  def test_split_digest_depends_on_people_set_aside_alone(self):
    digests = [
        _divide(_groups(), *sizes, per_client=per_client).split_digest
        for sizes in ((), (7,), (13,), (13, 7)) for per_client in (False, True)
    ]
    assert len(set(digests)) == len(digests)
    # The clients are the same, whatever the people set aside are for.
    assert _divide(_groups(), 0, 7).split_digest == digests[2]
    assert _divide(_groups(), 7, seed=1).split_digest == digests[2]
    # It does not depend on a client's presence, name or data.
    members = dict(_groups().members)
    members['group 0'] = [_person(100, num_train=1)]
    assert _divide(_groups(members=members), 7).split_digest == digests[2]

  def test_per_client_tests_are_outside_the_guarantee(self):
    data = _divide(_groups(), 7, per_client=True)
    assert data.test_outside_guarantee
    assert data.test_owners.ids == set(data.client_ids) >= {'person 2'}
    assert data.public_owners.ids.isdisjoint(data.client_ids)
    assert [len(x) for x, _ in data.clients] == [4] * len(data.clients)
    assert len(data.test[0]) == 2 * len(data.clients)
    text = 'a part of each client\'s examples, OUTSIDE (epsilon, delta)'
    assert ('test set', text) in data.rows()
    # Owners of validation examples are no clients in any case.
    assert not _divide(_groups(), 7, 3, per_client=True).test_outside_guarantee

  @pytest.mark.parametrize('per_client', [False, True])
  def test_config_and_plan_reveal_no_client_sizes(
      self, per_client, tmp_path, capsys, monkeypatch
  ):
    def run(size):
      monkeypatch.setattr(people_task, 'SIZE', size)
      out = tmp_path / f'size {size}'
      assert commands.main([
          'run', '--task=tests.support.people_task', '--algorithm=fedsmp_randk', '--rounds=1',
          '--seed=1', f'--made_up_per_client={per_client}', f'--output_dir={out}',
      ]) == 0
      config = json.loads((out / 'config.json').read_text())
      for name in ('run_id', 'date'):  # Independent of data.
        del config[name]
      summary = json.loads((out / 'summary.json').read_text())
      assert summary['test_outside_guarantee'] == config['test_outside_guarantee'] == per_client
      plan, _ = capsys.readouterr().out.split('output: ', 1)
      return config, ' '.join(plan.split())

    (config, plan), other = run(2), run(5)
    assert (config, plan) == other
    assert config['num_clients'] == (12 if per_client else 11)
    marked = 'columns test_*, measured on clients\' examples: do not publish them'
    assert (marked in plan) == per_client

  def test_too_large_sets_are_refused(self):
    with pytest.raises(
        errors.InputError,
        match='^--validation_examples=9 needs more .*: the 0 people .* for this set have 0',
    ):
      _divide(_groups(), 30, 9)
    for groups in (_groups(test=[]), _groups(test=list(_groups().members))):
      with pytest.raises(errors.InputError, match='made up: too few people'):
        _divide(groups)

  def test_hashed_order_of_a_person_depends_on_no_other(self):
    everyone = [_person(i) for i in range(400)]
    groups = people.in_hashed_order(everyone, 'people')
    assert 8 <= len(groups.test) <= 36  # 20 on average; four standard deviations.
    assert sorted([*groups.test, *groups.spare]) == sorted(p.name for p in everyone)
    without = people.in_hashed_order(everyone[:123] + everyone[124:], 'people')
    assert without.test == [n for n in groups.test if n != 'person 123']
    assert without.spare == [n for n in groups.spare if n != 'person 123']
    assert len(people.in_hashed_order(everyone[:1], 'people').test) == 1
