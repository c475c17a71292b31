"""Tests of the template of a task of one's own, and of release managers, through `tasks.run`."""

import json

import tensorflow_federated as tff

from docs import own_task
from tasks import report
from tasks import run
from tasks import sweep
from tasks.training import finished
from tests.support import commands

_TASK = f'--task={own_task.__name__}'
_MANAGER = tff.program.MemoryReleaseManager()


def manager():
  return _MANAGER


def no_manager():
  return 3


def test_the_template_trains_resumes_sweeps_and_is_reported(tmp_path, capsys):
  # Without noise, so that it learns in few rounds.
  flags = [
      _TASK, '--two_moons_clients=60', '--rounds=8', '--noise_multiplier=0',
      '--server_learning_rate=3', '--seed=1',
  ]
  out = tmp_path / 'runs' / 'a'
  arguments = ['run', *flags, f'--output_dir={out}']
  assert run.main(arguments) == 0
  printed = capsys.readouterr().out
  assert 'Two half circles, a small network' in printed and '  1 lower' in printed
  summary = json.loads((out / 'summary.json').read_text())
  assert summary['final_test_accuracy'] > 0.75
  assert run.main(arguments) == 0
  assert 'already finished' in capsys.readouterr().out
  assert finished.load_model(out).initial_weights[0][0].shape == (2, 16)
  again = ['--rounds=1', f'--output_dir={tmp_path}/runs/b', '--dry_run', '--two_moons_clients=9']
  assert run.main(['run', '--task', 'docs.own_task', *again, '--clients_per_round=3']) == 0
  assert 'docs.own_task, 1 rounds' in capsys.readouterr().out
  assert report.main(['report', str(tmp_path / 'runs'), f'--output={tmp_path}/report']) == 0
  text = (tmp_path / 'report' / 'report.md').read_text()
  assert f'{100 * summary["final_test_accuracy"]:.2f}' in text


def test_a_grid_of_it(tmp_path, capsys):
  grid = tmp_path / 'own.grid'
  grid.write_text(f'all: {_TASK} --rounds=2\n--two_moons_clients={{50,60}}\n')
  assert sweep.main(['sweep', f'--grid={grid}', '--seeds=1', '--print']) == 0
  lines = capsys.readouterr().out
  assert lines.count('--task=docs.own_task') == 2 and '--two_moons_clients=60' in lines


def test_what_is_no_task(capsys):
  said = commands.say(capsys, '--task=shakespear')
  assert said.startswith('tasks.run: --task=shakespear is neither one of shakespeare, ')


def test_its_own_flag_is_checked(capsys):
  said = commands.say(capsys, _TASK, '--two_moons_clients=0')
  assert '--two_moons_clients must be an integer >= 1; got 0.' in said


class TestReleaseManager:

  def _run(self, tmp_path, name):
    return run.main([
        'run', _TASK, '--two_moons_clients=40', '--clients_per_round=10', '--rounds=2',
        f'--release_manager={name}', f'--output_dir={tmp_path}/run',
    ])

  def test_it_receives_each_row_of_metrics(self, tmp_path):
    assert self._run(tmp_path, f'{__name__}:manager') == 0
    released = _MANAGER.values()
    rows = commands.rows(tmp_path / 'run' / 'metrics.csv')
    assert list(released) == [0, 1, 2] == [int(row['round']) for row in rows]
    for row in rows:
      value = released[int(row['round'])]
      assert set(value) == set(row)
      assert row['uplink_megabytes'] == str(value['uplink_megabytes'])

  def test_what_is_none_ends_the_run_before_it_begins(self, tmp_path, capsys):
    assert self._run(tmp_path, f'{__name__}:no_manager') == 2
    assert f'{__name__}:no_manager returned int, which is no' in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()
