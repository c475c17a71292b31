"""Tests of `python -m tasks.runs`: runs listed, compared and cleaned."""

import fcntl
import json

import pytest

from tasks import runs
from tests.support import commands
from tests.support import runs_on_disk


@pytest.fixture
def some(tmp_path):
  """A finished run, one that was interrupted, and one in use."""
  root = tmp_path / 'some'
  done = runs_on_disk.write(root / 'done', [0.1, 0.5])
  summary = {'rounds': 1}
  (done / 'summary.json').write_text(json.dumps(summary))
  runs_on_disk.write(root / 'cut', [0.1, 0.4, None], rounds=9, algorithm='dp_fedavg')
  used = runs_on_disk.write(root / 'used', [0.1], algorithm='fedavg')
  with open(used / '.lock', 'w', encoding='utf-8') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield root


def test_lists_runs(some, capsys):
  status, printed, _ = commands.of_module(capsys, runs, str(some))
  header, *lines = (line.split() for line in printed.splitlines())
  assert status == 0 and header[:3] == ['run', 'task', 'system']
  found = {line[0].rsplit('/', 1)[1]: line[1:-1] for line in lines}
  assert found == {
      'done': ['fashion_mnist', 'fedsmp_topk', '0.005', '0.1', '50.00', '1', 'of', '1', 'finished'],
      'cut': ['fashion_mnist', 'dp_fedavg', '0.2', '40.00', '2', 'of', '9', 'begun'],
      'used': ['fashion_mnist', 'fedavg', '10.00', '0', 'of', '1', 'running'],
  }


def test_compares_two(some, capsys):
  paths = [str(some / name) for name in ('done', 'cut')]
  status, printed, _ = commands.of_module(capsys, runs, '--compare', *paths)
  lines = {line.split()[0]: line.split()[1:] for line in printed.splitlines()[1:]}
  assert status == 0
  assert lines['--algorithm'] == ['fedsmp_topk', 'dp_fedavg']
  assert lines['--rounds'] == ['1', '9'] and lines['accuracy,'][1:] == ['50.00', '40.00']
  assert '--seed' not in lines  # They have the same.
  said = commands.refused(capsys, runs, '--compare', str(some))
  assert said == 'tasks.runs: --compare takes two runs, and found 3; name two.\n'


def test_nothing_there(tmp_path, capsys):
  assert 'has no run' in commands.refused(capsys, runs, str(tmp_path))


def test_a_cleaned_run_is_smaller_and_finished(data_dir, tmp_path, capsys):
  done, cut = tmp_path / 'done', tmp_path / 'cut'
  arguments = commands.tiny(data_dir, done, '--seed=1', '--algorithm=dp_fedavg')
  assert commands.main(arguments) == 0
  runs_on_disk.write(cut, [0.1], rounds=9)
  (cut / 'checkpoints' / 'round_0').mkdir(parents=True)
  before = commands.story(done)
  assert list(done.glob('checkpoints/round_*'))
  status, printed, _ = commands.of_module(capsys, runs, '--clean', str(tmp_path))
  assert status == 0 and 'removed the checkpoints of 1 finished runs' in printed
  assert [path.name for path in (done / 'checkpoints').iterdir()] == ['cleaned']
  assert (cut / 'checkpoints' / 'round_0').exists()
  # The same command again: the run is there, and unchanged.
  capsys.readouterr()
  assert commands.main(arguments) == 0
  assert 'already finished' in capsys.readouterr().out and commands.story(done) == before
  # A second time there is nothing to do.
  _, printed, _ = commands.of_module(capsys, runs, '--clean', str(tmp_path))
  assert printed.endswith(': 0.0 MB\n')


def test_help(capsys):
  status, printed, _ = commands.of_module(capsys, runs, '--help')
  assert status == 0 and '--clean' in printed
