"""Tests of a run's directory: who may read it, what its files may say, and its former ledgers."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib
from fedsmp_tff.program import checkpoints
from tasks import datasets
from tasks import errors
from tasks.cli import locks
from tasks.training import finished
from tasks.training import run_directory
from tests.support import commands
from tests.support import small_data
from tests.support import tiny_task
from tests.support import waiting


@pytest.fixture(scope='module')
def command(tmp_path_factory):
  """The command of a seeded run, made where others could read what one makes."""
  path = tmp_path_factory.mktemp('run')
  path.chmod(0o755)
  small_data.write_fashion_mnist(path / 'data')
  arguments = commands.tiny(path / 'data', path / 'runs' / 'a', '--rounds=1', '--seed=1')
  umask = os.umask(0o022)
  assert commands.main(arguments) == 0
  assert os.umask(umask) == 0o022
  return arguments


@pytest.fixture(scope='module')
def run(command):
  return next(
      pathlib.Path(flag.partition('=')[2])
      for flag in command if flag.startswith('--output_dir')
  )


class TestModes:

  def test_only_the_owner_can_read_files_of_a_command(self, run):
    paths = [run.parent, run, *run.rglob('*')]
    assert {'data_digest.json', 'config.json', 'privacy_ledger.jsonl', 'round_1.npz'} <= {
        path.name for path in paths
    }
    for path in paths:
      assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path

  def test_checkpoints_are_closed_where_others_could_read_them(self, tmp_path):
    (tmp_path / 'a').mkdir(mode=0o755)
    checkpoints.Checkpoints(tmp_path / 'a')
    assert (tmp_path / 'a').stat().st_mode & 0o777 == 0o700


def test_quick_overwrites_keep_all_ledgers(tmp_path):
  spec = spec_lib.PrivacySpec(60, 10, 5, 1.4, 0.5, 1e-3)
  for number in range(4):
    with run_directory.RunDirectory(tmp_path / 'a', overwrite=True) as out:
      out.begin({'run_id': str(number)}, {})
      ledger_lib.Ledger(out.path / run_directory.LEDGER, spec, str(number)).close()
  runs = sorted(record.run for _, record in run_directory.ledgers(out.path))
  assert runs == ['0', '1', '2', '3']


def test_an_overwrite_never_replaces_a_ledger(tmp_path, monkeypatch):
  monkeypatch.setattr(run_directory.time, 'time_ns', lambda: 7)  # As a clock that was set back.
  for i in range(4):
    with run_directory.RunDirectory(tmp_path / 'a', overwrite=True) as out:
      out.begin({}, {})
      (out.path / 'privacy_ledger.jsonl').write_text(str(i))
  ledgers = {path.name: path.read_text() for path in tmp_path.glob('a/privacy_ledger*')}
  assert ledgers == {
      'privacy_ledger.7.jsonl': '0', 'privacy_ledger.8.jsonl': '1', 'privacy_ledger.9.jsonl': '2',
      'privacy_ledger.jsonl': '3',
  }


def test_an_overwrite_removes_a_link_to_checkpoints_alone(tmp_path):
  link, scratch = tmp_path / 'a' / 'checkpoints', tmp_path / 'scratch'
  with run_directory.RunDirectory(tmp_path / 'a') as out:
    out.begin({'run_id': '0'}, {})
  link.rename(scratch)
  link.symlink_to(scratch)
  with run_directory.RunDirectory(tmp_path / 'a', overwrite=True) as out:
    out.begin({'run_id': '1'}, {})
  assert scratch.is_dir() and not link.is_symlink()


def test_a_lock_lasts_until_the_run_of_a_sweep_ends(tmp_path):
  with locks.open_locked(tmp_path) as lock:
    run = subprocess.Popen(
        [sys.executable, '-c',
         'import sys; from tasks.training import run_directory\n'
         'with run_directory.RunDirectory(sys.argv[1]): print("begun", flush=True); input()',
         str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[lock.fileno()],
        env={**os.environ, locks.DESCRIPTOR: str(lock.fileno())},
    )
    waiting.until_line(run.stdout, 'begun')
  with pytest.raises(errors.InputError, match=f'is in use by process {run.pid} on'):
    run_directory.RunDirectory(tmp_path)
  run.communicate('\n', timeout=waiting.SECONDS)
  assert run.returncode == 0
  with run_directory.RunDirectory(tmp_path):
    assert locks.open_locked(tmp_path) is None


class TestFilesOfOthers:

  @pytest.fixture
  def other(self, run, tmp_path):
    """Writes config.json with other fields; returns its directory."""
    def write(**fields):
      config = json.loads((run / 'config.json').read_text())
      (tmp_path / 'config.json').write_text(json.dumps(config | fields))
      (tmp_path / 'weights.npz').write_bytes((run / 'weights.npz').read_bytes())
      return tmp_path

    return write

  @pytest.mark.parametrize('fields', [
      dict(run_id=3), dict(flags=[]), dict(flags={'p': {}}), dict(seeds=None), dict(seeds={}),
      dict(seeds=dict(partition=1, weights=2, evaluation='3')), dict(versions='x'),
      dict(seeds=dict(partition=1, weights=2, evaluation=-3)), dict(data_source=[]),
      dict(seeds=dict(partition=1, weights=2, evaluation=3, process=4)), dict(privacy=True),
  ])
  def test_a_run_of_wrong_types_does_not_resume(self, other, command, capsys, fields):
    path = other(**fields)
    said = commands.say(capsys, *command[1:], f'--output_dir={path}')
    assert "config.json is missing or can't be read (" in said and 'can\'t be resumed' in said

  @pytest.mark.parametrize('fields, sentence', [
      (dict(task='somebodys.module'), 'is a run of --task=somebodys.module, which is not built in'),
      (dict(task='../x'), r'has no finished run \(`task` must be a name or a module'),
      (dict(flags={'initializer': '\x1b[31m'}), 'which this version does not have. Load it with the version'),
      (dict(flags={'initializer': []}), 'which this version does not have. Load it with the version'),
      (dict(flags={'initializer': 'torch'}, task='svhn'), r'its arrays are float32\[5, 5, 1, 2\]'),
  ])
  def test_a_foreign_model_is_loaded_or_refused(self, other, monkeypatch, fields, sentence):
    monkeypatch.delitem(datasets.TASKS, 'tests.support.tiny_task')
    monkeypatch.delitem(datasets.TASKS, 'tiny', raising=False)
    task = None if 'task' in fields else tiny_task.TASK
    with pytest.raises(errors.InputError, match=sentence):
      finished.load_model(other(**fields), task)
    assert finished.load_model(other(), tiny_task.TASK).initial_weights
    with pytest.raises(errors.InputError, match='Pass the TASK of that module as `task`'):
      finished.load_model(other())

  def test_options_of_a_foreign_run_are_checked_as_flags(self, other):
    for value, sentence in (
        ('keras', None), ('x', 'should be one of'), (3, 'should be one of'), ([], 'should be one'),
    ):
      path = other(task='shakespeare', flags={'initializer': 'torch', 'shakespeare_lstm': value})
      with pytest.raises(errors.InputError, match=sentence or 'its arrays are'):
        finished.load_model(path)

  @pytest.mark.parametrize('summary', [
      '[]', '{"finished": 1}', '{"finished": true}', '[' * 100_000,
      '{"finished": true, "final_test_accuracy": "x"}',
      '{"finished": true, "final_test_accuracy": 0.1, "epsilon": []}',
      '{"finished": true, "final_test_accuracy": 0.1, "epsilon": 1, "rounds_charged": "1"}',
  ])
  def test_a_summary_of_wrong_types_is_not_finished(self, run, summary, command):
    (run / 'summary.json').rename(run / 'kept')
    try:
      (run / 'summary.json').write_text(summary)
      assert finished.summary(run, _settings(command)) == {}
    finally:
      (run / 'kept').replace(run / 'summary.json')
    assert finished.summary(run, _settings(command))


def _settings(command):
  from tasks.training import settings  # pylint: disable=g-import-not-at-top

  return settings.parse(command[1:])[0]
