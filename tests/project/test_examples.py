"""Tests that the files of docs/examples run as a reader runs them, outside of the repository."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

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
  pattern = r'audit of one release: epsilon > (\S+); accountant: (\S+)'
  bound, exact = map(float, re.fullmatch(pattern, audit).groups())
  # A bound far below the accountant's would come from a canary that the noise hides.
  assert exact / 4 < bound < exact
  (ledger,) = tmp_path.rglob('ledger.jsonl')
  rounds = re.search(r'ROUNDS = \d+, (\d+)', (_EXAMPLES / 'one_file.py').read_text())[1]
  assert len(ledger.read_text().splitlines()) == 1 + int(rounds)


def test_train_model_ends_with_its_epsilon(tmp_path):
  *_, result = _lines('train_model.py', tmp_path)
  assert re.fullmatch(r'5 rounds, epsilon \d\.\d{3}, delta 0\.001', result)
