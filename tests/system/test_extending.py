"""Tests that the plug-ins of docs/extending.md, and parts of one's own, run outside the project."""

import json
import pathlib
import re
import shlex
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff.mechanism import channel
from tasks import account
from tasks import datasets
from tasks import errors
from tasks import report
from tasks import run
from tasks.training import finished
from tests.support import commands
from tests.support import linear_runs
from tests.support import tiny_models

_ROOT = pathlib.Path(__file__).parents[2]
_PAGE = (_ROOT / 'docs' / 'extending.md').read_text(encoding='utf-8')
_MANAGER = tff.program.MemoryReleaseManager()


def manager():
  return _MANAGER


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A directory with the files of the page, from which commands start."""
  for name, text in re.findall(r'```python\n# (\w+\.py)\n(.*?)```', _PAGE, re.DOTALL):
    (tmp_path / name).write_text(text)
  shutil.copy(_ROOT / 'docs' / 'own_task.py', tmp_path / 'two_moons.py')
  shutil.copy(_ROOT / 'docs' / 'own_rows_task.py', tmp_path)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  return tmp_path


def _command(name):
  """Returns the flags of the page's command, to which a test adds its own."""
  (line,) = re.findall(rf'^python -m tasks\.\w+ (.*\b{name}\b.*)$', _PAGE, re.M)
  return shlex.split(line, comments=True)


@pytest.mark.slow
def test_a_system_trains_and_is_reported(folder, data_dir, capsys):
  assert re.findall(r'^# (\w+)\.py$', _PAGE, re.M) == ['block', 'central_limit', 'rotating']
  small = [
      '--task=tests.support.tiny_task', f'--data_dir={data_dir}', '--batch_size=5',
      '--noise_multiplier=0.1', '--output_dir=runs/block', '--rounds=1', '--verbose',
  ]
  assert run.main(['run', *_command('block'), *small]) == 0
  printed = capsys.readouterr().out
  k = round(0.05 * commands.DIM)
  assert f'k = {k} (p = {k / commands.DIM:.4g}): a block of neighbouring coordinates' in printed
  assert ': SIMULATED' in printed
  assert report.main(['report', 'runs']) == 0
  assert 'block' in (folder / 'report' / 'cells.csv').read_text()


def test_a_task_trains_resumes_and_is_reported(folder, capsys):
  # Without noise, it learns in few rounds.
  arguments = [
      'run', *_command('two_moons'), '--rounds=8', '--noise_multiplier=0', '--seed=1',
      '--server_learning_rate=3', '--output_dir=runs/moons',
      f'--release_manager={__name__}:manager', '--verbose',
  ]
  assert run.main(arguments) == 0
  printed = capsys.readouterr().out
  assert 'Two half circles' in printed and '  1 lower' in printed
  # All 400 people but those of the test set and the five with the 100 public examples.
  aside = sum(map(int, re.findall(r'from (\d+) people set aside whole', printed)))
  assert 5 < aside < 60 and f'; {400 - aside} clients' in printed
  accuracy = json.loads((folder / 'runs/moons/summary.json').read_text())['final_test_accuracy']
  assert accuracy > 0.75
  released = _MANAGER.values()
  for row in commands.rows(folder / 'runs/moons/metrics.csv'):
    values = released.pop(int(row['round']))
    assert set(values) == set(row)
    assert row['uplink_megabytes'] == str(values['uplink_megabytes'])
  assert not released
  assert run.main(arguments) == 0
  assert 'already finished' in capsys.readouterr().out
  task = datasets.TASKS.pop('two_moons')  # As in another process.
  with pytest.raises(errors.InputError, match='Pass the TASK of that module as `task`'):
    finished.load_model(folder / 'runs/moons')
  assert finished.load_model(folder / 'runs/moons', task).initial_weights[0][0].shape == (2, 16)
  for flags, title in (([], 'two_moons'), (['--task=two_moons'], task.title)):
    assert report.main(['report', 'runs', *flags]) == 0
    text = (folder / 'report' / 'report.md').read_text()
    assert f'![{title}: accuracy over rounds and uplink](two_moons_rounds.png)' in text
  assert f'{100 * accuracy:.2f}' in (folder / 'report' / 'report.md').read_text()


def test_rows_with_a_user_column_train(folder, capsys):
  rng, lines = np.random.default_rng(1), ['user,label,height,weight']
  for _ in range(800):  # Rows of a person are not next to each other.
    height = rng.normal(1.7, 0.1)
    label = 'tall' if height > 1.7 else 'small'
    lines.append(f'user {rng.integers(90)},{label},{height:.2f},{rng.normal(70, 15):.1f}')
  path = folder / 'DIRECTORY' / 'rows.csv'
  arguments = ['run', *_command('own_rows_task'), '--seed=1', '--noise_multiplier=0', '--rounds=4']
  assert run.main([*arguments, '--dry_run']) == 2
  assert 'DIRECTORY/rows.csv does not exist. Name the dir' in capsys.readouterr().err
  path.parent.mkdir()
  for wrong, what in (
      ('user 1,giant,1.8,70', "KeyError: 'giant'"), ('user 1,tall,high,70', "to float: 'high'"),
      ('user 1,tall', 'TypeError'),
  ):
    path.write_text('\n'.join([*lines[:9], wrong, *lines[9:]]))
    assert run.main([*arguments, '--dry_run']) == 2
    said = capsys.readouterr().err
    assert 'rows.csv, line 10, can\'t be read (' in said and what in said and 'one of small' in said
  path.write_text('\n'.join(lines))
  assert run.main([*arguments, '--output_dir=runs/rows', '--verbose']) == 0
  printed = capsys.readouterr().out
  # A client is a person: all 90 but those who are set aside.
  aside = sum(map(int, re.findall(r'from (\d+) people set aside whole', printed)))
  assert f'rows.csv, 90 people; {90 - aside} clients' in printed
  assert json.loads((folder / 'runs/rows/summary.json').read_text())['final_test_accuracy'] > 0.8


@pytest.mark.slow
def test_a_custom_accountant_is_printed_and_never_quoted(folder, capsys):
  status, out, _ = commands.of_module(capsys, account, *_command('central_limit'))
  assert status == 0
  assert re.search(r'^epsilon = 0\.561\d? +no guarantee +poisson_clt: ', out, re.M)
  assert 'Quote epsilon = 0.6304, by poisson_pld' in out


@pytest.mark.slow
def test_a_custom_mask_trains_in_a_tff_process(folder):
  readme = (_ROOT / 'README.md').read_text(encoding='utf-8')
  example = re.search(r'```python\n(.*?)```', readme, re.DOTALL)[1]
  assert example.count('fedsmp_tff.RandK(0.5)') == 1
  own = example.replace('fedsmp_tff.RandK(0.5)', 'rotating.Rotating(0.5)')
  names = {}
  exec(f'import rotating\n{own}', names)
  process, client_data = names['process'], names['client_data']
  sampler = names['spec'].sampler()
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  state = process.initialize()
  np.testing.assert_array_equal(state.aggregator.coordinates, [0, 1, 2, 3])
  for round_num in range(2):
    cohort = fedsmp_tff.cohort(sampler.sample(round_num), client_data)
    output = process.next(state, cohort)
    state = output.state
  assert output.metrics['aggregator']['participants'] == 26


class _SmallestK(fedsmp_tff.SizedSparsifier):
  """Selects the k coordinates that an update on public data moves least."""

  def public_training(self):
    return fedsmp_tff.PublicTraining(linear_runs.PUBLIC)

  def choose(self, context):
    return tf.argsort(tf.abs(context.public_update()))[: self.num_kept(context.dim)]


class _Coarse(channel.GaussianChannel):
  """Rounds to a coarse grid before the noise."""

  def encode(self, values, seed, public_seed):
    return super().encode(tf.round(values * 4) / 4, seed, public_seed)


def test_a_custom_mask_and_channel_are_applied():
  clip = 0.01
  factory = fedsmp_tff.FedSmpFactory(
      _SmallestK(num=3), fedsmp_tff.Mechanism(3, clipping_norm=clip, noise_multiplier=1e-3),
      make_channel=_Coarse,
  )
  model = tiny_models.linear_regression()
  process = fedsmp_tff.build_fed_smp(model, linear_runs.training(), factory)
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  before = process.initialize()
  weights = process.get_model_weights(before)
  public_update = linear_runs.numpy_update(weights, linear_runs.PUBLIC, linear_runs.RATE)
  mask = sorted(map(int, before.aggregator.coordinates))
  assert mask == sorted(np.argsort(np.abs(public_update))[:3])
  # Equal clients: their mean is in quarters of C, but for noise of C / 3000.
  after = process.next(before, linear_runs.datasets()[:1] * 3).state
  moved = linear_runs.flat(weights) - linear_runs.flat(process.get_model_weights(after))
  assert sorted(np.flatnonzero(moved)) == mask
  quarters = 4 * moved / clip
  np.testing.assert_allclose(quarters, np.round(quarters), atol=0.02)
  assert np.any(np.round(quarters))
