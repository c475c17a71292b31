"""Tests of what a run hands to its participants, and of when it measures accuracy."""

import json
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

  def test_plan_table_and_resumed_run_have_the_same(self, data_dir, tmp_path, capsys):
    # Clients train for 8 x 52 / 12 examples, so that six rounds of three of them, at four passes
    # an example, are worth 2,496; 5 % are three times 20 test examples at the end, and 64.
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    assert self._run(data_dir, whole, '--local_epochs=8', '--rounds_per_checkpoint=1') == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert (
        'accuracy on all test examples every 2 rounds and after the last; the weights\' averages:'
        ' after the last; in all about 4.8 % of the work of clients\' training' in printed
    )
    assert self._measured(whole, 'test_accuracy') == [0, 2, 4, 6]
    for name in ('exponential', 'tail'):
      assert self._measured(whole, f'test_accuracy_{name}') == [6]
    shutil.copytree(
        whole, parts, ignore=shutil.ignore_patterns('round_[56]', 'summary.json', 'weights*')
    )
    assert self._run(data_dir, parts, '--local_epochs=8') == 0
    assert 'resuming after round 4 of 6' in capsys.readouterr().out
    assert commands.story(parts) == commands.story(whole)

  def test_short_run_measures_no_averages(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    assert self._run(data_dir, out, '--local_epochs=2') == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert (
        'the weights\' averages: not measured, since that would take over 5 %; --average_decay turns'
        ' it on;'
        ' in all about 6.4 %' in printed
    )
    assert self._measured(out, 'test_accuracy') == [0, 6]
    assert self._measured(out, 'test_accuracy_tail') == []
    assert 'final_test_accuracy_tail' not in json.loads((out / 'summary.json').read_text())
    assert (out / 'weights_tail.npz').exists()
