"""Tests of when a run measures accuracy: the work that it takes, and what it depends on."""

import dataclasses

import numpy as np
import pytest

from tasks.config import settings
from tasks.datasets import task as task_lib
from tasks.training import cadence

_EVALUATIONS_OF_AVERAGES = 2


def _settings(*arguments):
  return settings.parse(['--task=shakespeare', '--algorithm=fedavg', *arguments])[0]


def _data(num_test=2000, sizes=(40,) * 20, labels=80, even=True, **facts):
  """Clients of these sizes, and a test set of four people who are none of them."""

  def examples(num):
    return np.zeros([num, labels], np.int32), np.zeros([num, labels], np.int32)

  return task_lib.TaskData(
      clients=[examples(size) for size in sizes],
      test=examples(num_test),
      public=None,
      source='made up',
      client_ids=tuple(map(str, range(len(sizes)))),
      test_owners=task_lib.Owners('four others', frozenset('abcd')),
      even=even,
      **facts,
  )


def _work(found, rounds, num_test):
  """Forward passes of a run, counted one measurement at a time."""
  passes = 0
  for rounds_done in range(rounds + 1):
    last = rounds_done == rounds
    if not last and rounds_done % found.rounds_per_evaluation:
      continue
    num = num_test if last or found.eval_examples is None else found.eval_examples
    passes += num
    every = found.rounds_per_average
    if every is not None and rounds_done and (last or rounds_done % every == 0):
      passes += _EVALUATIONS_OF_AVERAGES * num
  return passes


def _points(found, rounds):
  return len(range(0, rounds, found.rounds_per_evaluation))


class TestOfRun:

  @pytest.mark.parametrize('rounds', [150, 260, 500, 1000, 5000])
  @pytest.mark.parametrize('num_test', [100, 2000, 3000])
  def test_default_keeps_to_the_budget_with_a_curve(self, rounds, num_test):
    # Ten clients of 40 examples each, a step's work on an example four passes.
    training = 4 * rounds * 10 * 40
    found = cadence.of_run(_settings(f'--rounds={rounds}'), _data(num_test))
    work = _work(found, rounds, num_test)
    assert work <= 0.05 * training
    assert found.share == pytest.approx(work / training)
    assert _points(found, rounds) >= 20
    # No budget is left over that would do for more.
    every_round_on_all = found.rounds_per_evaluation == 1 and found.eval_examples is None
    assert every_round_on_all or work >= 0.6 * 0.05 * training

  @pytest.mark.parametrize('rounds', [1, 2, 5, 20, 80])
  def test_short_run_adds_little_to_the_end(self, rounds):
    training = 4 * rounds * 10 * 40
    budget = 0.05 * training
    found = cadence.of_run(_settings(f'--rounds={rounds}'), _data())
    assert found.rounds_per_average is None
    # A thousand labels are 13 sequences of 80.
    assert _work(found, rounds, 2000) <= max(budget, 2000 + budget / 4, 2000 + 13)
    assert found.share == pytest.approx(_work(found, rounds, 2000) / training)

  def test_examples_fall_before_points_do(self):
    lengths = (10_000, 1000, 400, 100, 20, 5)
    found = [cadence.of_run(_settings(f'--rounds={rounds}'), _data()) for rounds in lengths]
    nums = [one.eval_examples or 2000 for one in found]
    points = [_points(one, rounds) for one, rounds in zip(found, lengths)]
    assert nums == sorted(nums, reverse=True)
    assert nums[0] == 2000 and points[0] > 40
    # Of 80 labels each: a thousand labels at least.
    assert all(13 <= num < 2000 for num in nums[1:])
    assert all(20 <= num <= 40 for num in points[1:-1]) and points[-1] == 5
    # A tenth of the work for training: fewer points, too, as each has what it needs.
    cheap = cadence.of_run(_settings('--rounds=40'), _data(sizes=(4,) * 20))
    assert cheap.eval_examples == 13 and 0 < _points(cheap, 40) < 20

  def test_explicit_flags_win(self):
    data = _data()
    both = cadence.of_run(
        _settings('--rounds=5', '--rounds_per_evaluation=2', '--eval_examples=700'), data
    )
    assert (both.rounds_per_evaluation, both.eval_examples, both.rounds_per_average) == (2, 700, 20)
    assert both.share == pytest.approx(_work(both, 5, 2000) / (4 * 5 * 400))
    many = cadence.of_run(_settings('--rounds=100', '--rounds_per_evaluation=1'), data)
    assert many.rounds_per_evaluation == 1 and many.rounds_per_average == 10
    assert many.share == pytest.approx(_work(many, 100, 2000) / (4 * 100 * 400))
    few = cadence.of_run(_settings('--eval_examples=20'), data)
    assert (few.rounds_per_evaluation, few.eval_examples) == (1, 20)
    for num in (0, 2000, 10**6):
      whole = cadence.of_run(_settings(f'--eval_examples={num}'), data)
      assert whole.eval_examples is None
      assert _work(whole, 1000, 2000) <= 0.05 * 4 * 1000 * 400
    averaged = cadence.of_run(_settings('--rounds=5', '--average_decay=0.9'), data)
    assert averaged.rounds_per_average == 5

  def test_work_of_training_follows_flags(self):
    def of(*arguments):
      return cadence.of_run(_settings('--eval_examples=50', '--rounds=50', *arguments), _data())

    assert of('--local_epochs=3').share < of().share
    # 100 steps of four examples are ten passes over 40.
    assert of('--local_steps=100') == of('--local_epochs=10')
    assert of('--clients_per_round=20') == of('--local_epochs=2')

  def test_sizes_of_people_do_not_show(self):
    run = _settings('--rounds=400')
    uneven = {'even': False, 'labels': 80}
    few, many = _data(sizes=(3,) * 20, **uneven), _data(sizes=(900,) * 20, **uneven)
    assert cadence.of_run(run, few) == cadence.of_run(run, many)
    # The test set is the clients' own: its size does not show either.
    own = [
        dataclasses.replace(
            _data(num, sizes=(size,) * 20, **uneven),
            test_owners=task_lib.Owners('their own', frozenset(map(str, range(20)))),
        )
        for num, size in ((50, 3), (5000, 900))
    ]
    found = cadence.of_run(run, own[0])
    assert found == cadence.of_run(run, own[1])
    assert found == cadence.Cadence(10, 13, 400, None)
    given = _settings('--rounds=400', '--eval_examples=0', '--rounds_per_evaluation=7')
    assert cadence.of_run(given, own[0]) == cadence.Cadence(7, None, 70, None)


def test_labels_per_example():
  images = dataclasses.replace(
      _data(), test=(np.zeros([5, 2, 2, 1], np.uint8), np.zeros(5, np.int32))
  )
  assert cadence.labels_per_example(images) == 1
  assert cadence.labels_per_example(_data()) == 80
