"""Tests of what another platform or Python gets, and what an import does without being asked."""

import os
import pathlib
import platform
import re
import subprocess
import sys

import pytest

import fedsmp_tff
from fedsmp_tff import _platform

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).parents[2]
_SENTENCE = 'fedsmp_tff requires Python 3.11 on Linux'


def _python(tmp_path, *arguments):
  """Runs Python as on a Mac, which has no TFF and may have no TensorFlow."""
  (tmp_path / 'sitecustomize.py').write_text(
      'import platform, sys\n'
      'platform.system = lambda: "Darwin"\n'
      'sys.modules |= dict.fromkeys(("tensorflow", "tensorflow_federated"))\n'
  )
  return subprocess.run(
      [sys.executable, *arguments], cwd=_ROOT, capture_output=True, text=True, check=False,
      env={**os.environ, 'PYTHONPATH': str(tmp_path)},
  )


@pytest.mark.parametrize('module, name, value, sentence', [
    (platform, 'machine', lambda: 'aarch64', 'Python 3.11 on Linux x86-64.*aarch64'),
    (sys, 'version_info', (3, 12, 1, 'final', 0), 'Found Python 3.12 on'),
])
def test_another_platform_or_python_is_named(monkeypatch, module, name, value, sentence):
  monkeypatch.setattr(module, name, value)
  assert re.search(sentence, _platform.problem())


@pytest.mark.parametrize('arguments, sentence', [
    (['-m', 'tasks.run', '--task=shakespeare'], f'tasks.run: {_SENTENCE}'),
    (['-c', 'from fedsmp_tff import FedSmpFactory'], f'ImportError: {_SENTENCE}'),
    (['-c', 'from fedsmp_tff import runtime'], f'ImportError: {_SENTENCE}'),
])
def test_imports_that_need_tff_name_the_platform(tmp_path, arguments, sentence):
  done = _python(tmp_path, *arguments)
  assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(sentence)
  assert ('Traceback' in done.stderr) == (arguments[0] == '-c')


def test_accounting_works_on_another_platform(tmp_path):
  done = _python(
      tmp_path, '-c',
      'import fedsmp_tff\n'
      'from fedsmp_tff.privacy import auditing, ledger, sampling\n'
      'spec = fedsmp_tff.PrivacySpec(\n'
      '    population=6000, clients_per_round=100, rounds=180, noise_multiplier=1.4,\n'
      '    clipping_norm=1.0, delta=7e-5,\n'
      ')\n'
      'print(round(spec.epsilon(), 2))',
  )
  assert (done.stdout, done.stderr) == ('0.63\n', '')


def test_every_public_name_exists():
  for name in fedsmp_tff.__all__:
    assert getattr(fedsmp_tff, name) is not None
  assert {'privacy', 'program', 'runtime', 'theory'} < {*fedsmp_tff.__all__} <= {*dir(fedsmp_tff)}
  assert not hasattr(fedsmp_tff, 'no_such_name')
