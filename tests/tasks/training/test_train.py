"""Tests of what a run hands to its participants, and of when it measures accuracy."""

import shutil

import numpy as np
import pytest

from tasks.datasets import task as task_lib
from tasks.training import train
from tests.support import commands


class TestClientData:

  @pytest.mark.parametrize('tagged', [False, True])
  def test_noise_only_participants_hold_nothing(self, tagged):
    clients = [(np.ones((3, 2)), np.arange(3)), (np.zeros((1, 2)), np.arange(1))]
    data = task_lib.TaskData(clients, clients[0], None, 'made up')
    client_data = train.ClientData(data, tagged)
    ids = []
    for client, size in ((0, 3), (1, 1), (-1, 0), (-2, 0)):
      dataset = client_data(client)
      if tagged:
        ids.append(int(next(iter(dataset['client_id']))))
        dataset = dataset['examples']
      assert len(list(dataset)) == size
      assert dataset.element_spec[0].shape == [2]
    # Seeded noise derives from these: no two may be alike.
    assert ids == ([0, 1, -1, -2] if tagged else [])
    # Made once: new datasets for every round cost memory.
    assert client_data(-1) is client_data(-1)


class TestCadence:

  def _run(self, data_dir, out, *arguments):
    arguments = commands.tiny(data_dir, out, '--seed=1', '--rounds=6', *arguments)
    return commands.main([a for a in arguments if not a.startswith('--rounds_per_evaluation')])

  def _measured(self, out, column):
    rows = commands.rows(out / 'metrics.csv')
    return [int(row['round']) for row in rows if row[column]]

  def test_plan_table_and_resumed_run_have_the_same(
      self, data_dir, tmp_path, capsys, checkpoint_each_round
  ):
    # About 20 measurements, each of a sample but the last.
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    flags = ('--rounds=23', '--eval_examples=3', '--algorithm=fedavg')
    assert self._run(data_dir, whole, *flags) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert 'accuracy on 3 random test examples every 2 rounds' in printed
    assert 'and on all after the last' in printed
    assert self._measured(whole, 'test_accuracy') == [*range(0, 23, 2), 23]
    shutil.copytree(
        whole, parts, ignore=shutil.ignore_patterns('round_23', 'summary.json', 'weights*')
    )
    assert self._run(data_dir, parts, *flags) == 0
    assert 'resuming after round 22 of 23' in capsys.readouterr().out
    assert commands.story(parts) == commands.story(whole)

  def test_a_short_run_measures_each_round(self, data_dir, tmp_path):
    out = tmp_path / 'run'
    assert self._run(data_dir, out, '--algorithm=fedavg') == 0
    assert self._measured(out, 'test_accuracy') == [*range(7)]
