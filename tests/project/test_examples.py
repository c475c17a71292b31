"""Tests that the files of docs/examples run as a reader runs them, outside of the repository."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from docs.examples import scattering
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
def test_the_private_run_learns_within_its_epsilon_and_the_audit_agrees(tmp_path):
  *_, result, audit = _lines('one_file.py', tmp_path)
  accuracy, epsilon = map(float, re.match(r'accuracy (\S+)%, epsilon (\S+) ', result).groups())
  # Chance is 10 %.
  assert accuracy > 50 and 1.9 < epsilon <= 2
  pattern = r'audit, one release, all clients: epsilon > (\S+); accountant: (\S+)'
  bound, exact = map(float, re.fullmatch(pattern, audit).groups())
  # A bound far below the accountant's would come from a canary that the noise hides.
  assert exact / 4 < bound < exact
  (ledger,) = tmp_path.rglob('ledger.jsonl')
  rounds = re.search(r'ROUNDS = \d+, (\d+)', (_EXAMPLES / 'one_file.py').read_text())[1]
  assert len(ledger.read_text().splitlines()) == 1 + int(rounds)


def test_the_features_of_scattering_train_a_last_layer(tmp_path):
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


def test_train_model_ends_with_its_epsilon(tmp_path):
  *_, result = _lines('train_model.py', tmp_path)
  assert re.fullmatch(r'5 rounds, epsilon \d\.\d{3}, delta 0\.001', result)
