"""Tests of what another platform or Python is told."""

import os
import pathlib
import platform
import subprocess
import sys

import pytest

from fedsmp_tff import _platform

_ROOT = pathlib.Path(__file__).parents[2]


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
  (tmp_path / 'sitecustomize.py').write_text(
      'import platform\nplatform.system = lambda: "Darwin"\n'
  )
  done = subprocess.run(
      [sys.executable, '-m', 'tasks.run', '--task=shakespeare'],
      cwd=_ROOT,
      env={**os.environ, 'PYTHONPATH': str(tmp_path)},
      capture_output=True,
      text=True,
      check=False,
  )
  assert done.returncode == 1
  assert done.stderr.startswith('tasks.run: fedsmp_tff needs Python 3.11 on Linux')
  assert done.stderr.count('\n') == 1
