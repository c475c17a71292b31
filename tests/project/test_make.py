"""Tests of `make` where something is missing."""

import os
import pathlib
import shutil
import subprocess

_ROOT = pathlib.Path(__file__).parents[2]


def test_without_python_it_names_the_remedy(tmp_path):
  (tmp_path / 'bin').mkdir()
  for program in ('make', 'sh'):
    (tmp_path / 'bin' / program).symlink_to(shutil.which(program))
  for name in ('Makefile', 'requirements.txt'):
    shutil.copy(_ROOT / name, tmp_path)
  done = subprocess.run(
      ['make', 'run'], cwd=tmp_path, env={**os.environ, 'PATH': str(tmp_path / 'bin')},
      capture_output=True, text=True, check=False,
  )
  assert done.returncode == 2
  assert done.stderr.startswith(
      'make: no python3.11 is on the PATH; install Python 3.11, or name one: make PYTHON=FILE\n'
  )


def test_an_environment_that_is_a_link_is_not_emptied(tmp_path):
  (tmp_path / 'theirs').mkdir()
  (tmp_path / 'theirs' / 'file').write_text('kept')
  (tmp_path / 'clone').mkdir()
  (tmp_path / 'clone' / '.venv').symlink_to(tmp_path / 'theirs')
  for name in ('Makefile', 'requirements.txt'):
    shutil.copy(_ROOT / name, tmp_path / 'clone')
  done = subprocess.run(
      ['make', 'test'], cwd=tmp_path / 'clone', capture_output=True, text=True, check=False
  )
  assert done.returncode == 2 and done.stderr.startswith('make: .venv is a link')
  assert (tmp_path / 'theirs' / 'file').read_text() == 'kept'
