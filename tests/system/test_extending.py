"""Tests that the plug-ins of docs/extending.md run as a stranger's, outside of the repository."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from fedsmp_tff.privacy import spec as spec_lib
from tasks import account
from tasks import report
from tasks import run
from tests.support import commands

_ROOT = pathlib.Path(__file__).parents[2]
_PAGE = (_ROOT / 'docs' / 'extending.md').read_text(encoding='utf-8')
# Follows the README's example.
_CHECKS = '''
tff.test.assert_not_contains_unsecure_aggregation(process.next)
state, turns = output.state, [process.initialize().aggregator.coordinates]
for _ in range(3):
  turns.append(state.aggregator.coordinates)
  state = process.next(state, clients).state
print([list(map(int, turn)) for turn in turns], output.metrics['aggregator']['participants'])
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A directory with the files of the page, from which commands start."""
  for name, text in re.findall(r'```python\n# (\w+\.py)\n(.*?)```', _PAGE, re.DOTALL):
    (tmp_path / name).write_text(text)
  shutil.copy(_ROOT / 'docs' / 'own_task.py', tmp_path / 'two_moons.py')
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  return tmp_path


def _command(name):
  """The flags of the page's command, with which a test's own are merged."""
  (line,) = re.findall(rf'^python -m tasks\.\w+ (.*\b{name}\b.*)$', _PAGE, re.M)
  return shlex.split(line)


def test_the_page_has_all_files():
  assert re.findall(r'^# (\w+)\.py$', _PAGE, re.M) == ['block', 'central_limit', 'rotating']
  assert len(_PAGE.splitlines()) <= 150


def test_a_system_trains_and_is_reported(folder, data_dir, capsys):
  small = [
      '--task=tests.support.tiny_task', f'--data_dir={data_dir}', '--batch_size=5',
      '--noise_multiplier=0.1', '--output_dir=runs/block', '--rounds=1',
  ]
  assert run.main(['run', *_command('block'), *small]) == 0
  printed = capsys.readouterr().out
  k = round(0.05 * commands.DIM)
  assert f'k = {k} (p = {k / commands.DIM:.4g}): a block of neighbouring coordinates' in printed
  assert 'WOULD BE VALID WITH FRESH NOISE' in printed
  assert report.main(['report', 'runs']) == 0
  assert 'block' in (folder / 'report' / 'cells.csv').read_text()


def test_a_task_trains_and_resumes(folder, capsys):
  arguments = ['run', *_command('two_moons'), '--rounds=2', '--output_dir=runs/moons']
  assert run.main(arguments) == 0
  printed = capsys.readouterr().out
  assert 'Two half circles' in printed and '400 clients' in printed and '  1 lower' in printed
  assert run.main(arguments) == 0
  assert 'already finished' in capsys.readouterr().out


def test_an_accountant_is_printed_and_never_quoted(folder, capsys):
  status, out, _ = commands.of_module(capsys, account, *_command('central_limit'))
  assert status == 0
  (line,) = [line for line in out.splitlines() if 'poisson_clt' in line]
  assert re.fullmatch(r'epsilon = 0\.561\d? +no guarantee +poisson_clt: .*;', line)
  assert 'Quote epsilon = 0.6303, by poisson_pld' in out
  import central_limit  # pylint: disable=g-import-not-at-top

  spec = spec_lib.PrivacySpec(6000, 100, 180, 1.4, 1.0, 6000**-1.1)
  assert f'{spec.epsilon(central_limit.ACCOUNTANT):.3f}' == '0.561'


def test_a_mask_in_a_tff_process(folder):
  readme = (_ROOT / 'README.md').read_text(encoding='utf-8')
  example = re.search(r'```python\n(.*?)```', readme, re.DOTALL)[1]
  assert example.count('fedsmp_tff.RandK(0.5)') == 1
  own = example.replace('fedsmp_tff.RandK(0.5)', 'rotating.Rotating(0.5)')
  (folder / 'example.py').write_text(f'import rotating\n{own}{_CHECKS}')
  done = subprocess.run(
      [sys.executable, 'example.py'], capture_output=True, text=True, check=False,
      env={**os.environ, 'PYTHONPATH': str(_ROOT)},
  )
  assert done.returncode == 0, done.stderr
  *_, turns = done.stdout.splitlines()
  # Four of eight coordinates per round, from the first; 26 participants.
  assert turns.startswith('[[0, 1, 2, 3], ') and turns.endswith(' 26'), turns
