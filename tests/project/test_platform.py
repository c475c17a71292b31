"""Tests of what another platform or Python gets, and what an import does without being asked."""

import os
import pathlib
import platform
import subprocess
import sys

import pytest

import fedsmp_tff
from fedsmp_tff import _platform

_ROOT = pathlib.Path(__file__).parents[2]
_SENTENCE = 'fedsmp_tff needs Python 3.11 on Linux'


def _python(tmp_path, *arguments):
  """Runs Python as on a Mac, which has no TFF and may have no TensorFlow."""
  (tmp_path / 'sitecustomize.py').write_text(
      'import platform, sys\n'
      'platform.system = lambda: "Darwin"\n'
      'sys.modules |= dict.fromkeys(("tensorflow", "tensorflow_federated"))\n'
  )
  return subprocess.run(
      [sys.executable, *arguments],
      cwd=_ROOT,
      env={**os.environ, 'PYTHONPATH': str(tmp_path)},
      capture_output=True,
      text=True,
      check=False,
  )



def test_this_platform_is_supported():
  assert _platform.problem() == ''
  # What `make` asks before it makes .venv.
  asked = subprocess.run([sys.executable, _platform.__file__], check=False)
  assert asked.returncode == 0


@pytest.mark.parametrize(
    'name, value', [('system', 'Darwin'), ('machine', 'aarch64')]
)
def test_another_platform_gets_a_sentence(monkeypatch, name, value):
  monkeypatch.setattr(platform, name, lambda: value)
  said = _platform.problem()
  assert 'Python 3.11 on Linux x86-64' in said and value in said


def test_another_python_gets_a_sentence(monkeypatch):
  monkeypatch.setattr(sys, 'version_info', (3, 12, 1, 'final', 0))
  assert 'this is Python 3.12 on' in _platform.problem()


def test_the_command_says_it_without_a_traceback(tmp_path):
  done = _python(tmp_path, '-m', 'tasks.run', '--task=shakespeare')
  assert done.returncode == 1
  assert done.stderr.startswith(f'tasks.run: {_SENTENCE}')
  assert done.stderr.count('\n') == 1


def test_accounting_works_on_another_platform(tmp_path):
  done = _python(
      tmp_path, '-c',
      'import fedsmp_tff\n'
      'spec = fedsmp_tff.PrivacySpec(\n'
      '    population=6000, clients_per_round=100, rounds=180, noise_multiplier=1.4,\n'
      '    clipping_norm=1.0, delta=7e-5,\n'
      ')\n'
      'print(round(spec.epsilon(), 2))',
  )
  assert (done.stdout, done.stderr) == ('0.63\n', '')


@pytest.mark.parametrize('name', ['FedSmpFactory', 'runtime'])
def test_what_needs_tff_says_so_on_another_platform(tmp_path, name):
  done = _python(tmp_path, '-c', f'from fedsmp_tff import {name}')
  assert done.stderr.splitlines()[-1].startswith(f'ImportError: {_SENTENCE}')


def test_privacy_is_imported_without_tensorflow():
  done = subprocess.run(
      [
          sys.executable, '-c',
          'import sys, fedsmp_tff\n'
          'fedsmp_tff.PrivacySpec\n'
          'from fedsmp_tff.privacy import auditing, ledger, sampling\n'
          "print({'tensorflow', 'tensorflow_federated'} & {*sys.modules})",
      ],
      cwd=_ROOT, capture_output=True, text=True, check=True,
  )
  assert done.stdout == 'set()\n'


def test_every_public_name_is_there_and_no_other():
  for name in fedsmp_tff.__all__:
    assert getattr(fedsmp_tff, name) is not None
  assert {*fedsmp_tff.__all__} <= {*dir(fedsmp_tff)}
  assert not hasattr(fedsmp_tff, 'no_such_name')
  for module in ('privacy', 'program', 'runtime', 'theory'):
    assert module in fedsmp_tff.__all__
