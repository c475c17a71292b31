"""Tests of `make` where something is missing."""

import os
import pathlib
import shutil
import subprocess

_ROOT = pathlib.Path(__file__).parents[2]


def _make(directory, target, **environment):
  for name in ('Makefile', 'requirements.txt'):
    shutil.copy(_ROOT / name, directory)
  done = subprocess.run(
      ['make', target], cwd=directory, env={**os.environ, **environment}, capture_output=True,
      text=True, check=False,
  )
  assert done.returncode == 2
  return done.stderr


def test_an_environment_that_is_a_link_is_not_emptied(tmp_path):
  (tmp_path / 'elsewhere').mkdir()
  (tmp_path / 'elsewhere' / 'file').write_text('kept')
  (tmp_path / 'clone').mkdir()
  (tmp_path / 'clone' / '.venv').symlink_to(tmp_path / 'elsewhere')
  assert _make(tmp_path / 'clone', 'test').startswith('make: .venv is a link')
  assert (tmp_path / 'elsewhere' / 'file').read_text() == 'kept'
