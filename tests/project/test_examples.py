"""Tests that the files of docs/examples run as a reader runs them, outside of the repository."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from docs.examples import local_only
from docs.examples import plain_dp_fedavg
from docs.examples import scattering
from tasks import datasets
from tasks.datasets import shakespeare
from tasks.datasets import task as task_lib
from tasks.models import initializers
from tests.support import small_data

_EXAMPLES = pathlib.Path(__file__).parents[2] / 'docs' / 'examples'

pytestmark = pytest.mark.slow


def _lines(name, directory):
  """Runs an example in `directory`; returns the lines that it prints."""
  done = subprocess.run(
      [sys.executable, _EXAMPLES / name], cwd=directory,
      env={**os.environ, 'TMPDIR': str(directory)}, stdout=subprocess.PIPE, text=True, check=True,
  )
  return done.stdout.splitlines()


@pytest.mark.skipif(
    not os.path.isdir('/usr/share/datasets/fashion-mnist'),
    reason="needs Debian's dataset-fashion-mnist",
)
def test_one_file_learns_within_epsilon_and_audit_agrees(tmp_path):
  first, *_, result, audit = _lines('one_file.py', tmp_path)
  accuracy, epsilon = map(float, re.match(r'accuracy (\S+)%, epsilon (\S+) ', result).groups())
  # Runs gained 1.1 to 2.9 points over the public images.
  start = float(re.fullmatch(r'public images alone: test accuracy (\S+)%', first)[1])
  assert accuracy > start > 70 and 1.9 < epsilon <= 2
  pattern = r'audit, one release, all clients: epsilon > (\S+); accountant: (\S+)'
  bound, exact = map(float, re.fullmatch(pattern, audit).groups())
  # A bound far below the accountant's would come from a canary that the noise hides.
  assert exact / 4 < bound < exact
  (ledger,) = tmp_path.rglob('privacy_ledger.jsonl')
  rounds = re.search(r'ROUNDS = \d+, (\d+)', (_EXAMPLES / 'one_file.py').read_text())[1]
  assert len(ledger.read_text().splitlines()) == 1 + int(rounds)


@pytest.mark.parametrize('skip', [False, True])
def test_plain_dp_fedavg_stops_at_or_skips_overflows(
    tmp_path, monkeypatch, capsys, skip
):
  small_data.write_fashion_mnist(tmp_path / 'data')
  arguments = [f'--data_dir={tmp_path / "data"}', '--rounds=2', '--rounds_per_evaluation=1']
  evaluated = []
  monkeypatch.setattr(plain_dp_fedavg, '_RATE', 1e30)
  load = plain_dp_fedavg._Trainer.load
  monkeypatch.setattr(
      plain_dp_fedavg._Trainer, 'load',
      lambda self, flat, *args: (evaluated.append(flat.copy()), load(self, flat, *args)),
  )
  monkeypatch.setattr(sys, 'argv', ['plain', *arguments, *['--skip'] * skip])
  plain_dp_fedavg.main()
  out = capsys.readouterr().out
  assert out.count(': accuracy ') == 3 and 'round 0: updates of ' in out
  assert np.isfinite(evaluated[-1]).all() == skip


def test_scattering_features_train_a_last_layer(tmp_path):
  images = np.zeros((3, 28, 28, 1), np.uint8)
  images[0, 8:20, 8:20], images[1, 9:21, 8:20], images[2, ::4] = 200, 200, 200
  square, moved, stripes = scattering.features(images).astype(np.float64)
  assert [square.mean(), square.std()] == pytest.approx([0, 1], abs=1e-3)
  # Averages over windows change little where an object moves by a pixel (Bruna and Mallat 2013).
  assert np.linalg.norm(square - moved) < np.linalg.norm(square - stripes) / 4
  small_data.write_fashion_mnist(tmp_path / 'data')
  flags = ['--data_dir=data', '--scattering_clients=12', '--clients_per_round=4', '--rounds=2']
  statuses = []
  for components in (0, 5, 21):  # The later runs read the file; public examples span 20.
    done = subprocess.run(
        [
            sys.executable, '-m', 'tasks.run', '--task=docs.examples.scattering', *flags,
            '--public_examples=20', f'--scattering_components={components}',
            f'--output_dir=run_{components}',
        ],
        cwd=tmp_path, env={**os.environ, 'PYTHONPATH': str(_EXAMPLES.parents[1])},
        stderr=subprocess.PIPE, text=True, check=False,
    )
    statuses.append(done.returncode)
  assert statuses[:2] == [0, 0] and statuses[2] in (1, 2)
  assert '--scattering_components=21 needs as many public examples, not 20' in done.stderr
  with np.load(tmp_path / 'run_5' / 'weights.npz') as weights:
    assert {weights[name].shape for name in weights} == {(5, 10), (10,)}
  assert (tmp_path / 'scattering.npz').exists()


def test_local_only_does_not_train_on_test_examples(monkeypatch):
  def of_nine_roles(own, split):
    """The first roles, with 'd' as the next character everywhere in the last fifth of a role."""
    data = whole_task.load(own, split)
    clients = [(x, y.copy()) for x, y in data.clients[:9]]
    for x, y in clients:
      y[len(x) - len(x) // 5 :] = 1
    return dataclasses.replace(data, clients=clients, client_ids=data.client_ids[:9])

  whole_task = shakespeare.TASK
  pretraining = dataclasses.replace(whole_task.pretraining, epochs=4)
  task = dataclasses.replace(whole_task, load=of_nine_roles, pretraining=pretraining)
  monkeypatch.setattr(shakespeare, 'TASK', task)
  monkeypatch.setitem(datasets.TASKS, 'shakespeare', task)
  from tasks.training import experiment as experiment_lib
  from tasks.training import pretraining

  seeds = experiment_lib.make_seeds(1, None)
  split = task_lib.Split(seeds.partition, num_public=64)
  own, whole = (load(shakespeare.Options(), split) for load in (local_only.TASK.load, task.load))
  assert own.test_outside_guarantee
  begin = 0
  for (x, y), (whole_x, whole_y) in zip(own.clients, whole.clients, strict=True):
    end = begin + len(whole_x) // 5
    np.testing.assert_array_equal(np.concatenate([x, own.test[0][begin:end]]), whole_x)
    np.testing.assert_array_equal(np.concatenate([y, own.test[1][begin:end]]), whole_y)
    begin = end
  assert begin == len(own.test[0])

  before, *after = local_only.accuracies(1, ('--public_examples=64', '--clients_per_round=4'))
  model = task.build_model(shakespeare.Options(), initializers.INITIALIZERS['keras'](seeds.weights))
  schedule = task.pretraining.for_examples(64)
  weights = pretraining.train(model, schedule, whole.public, seeds.partition)
  logits = model.predict_on_batch((weights.trainable, ()), own.test[0], training=False)
  right = np.argmax(logits, axis=-1) == 1
  # Rounded features change some predictions.
  assert before == pytest.approx(100 * right.mean(), abs=0.1)
  # Training changes the model, and a role that trained on its last fifth would write 'd' alone.
  assert len({before, *after}) > 2 and max(after) < 20


def test_train_model_prints_epsilon(tmp_path):
  *_, result = _lines('train_model.py', tmp_path)
  assert re.fullmatch(r'5 rounds, epsilon \d\.\d{3}, delta 0\.001', result)
