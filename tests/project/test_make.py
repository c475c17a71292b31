"""Tests of `make` where something is missing."""

import pathlib
import shutil
import subprocess

_ROOT = pathlib.Path(__file__).parents[2]


def test_an_environment_that_is_a_link_is_not_emptied(tmp_path):
  (tmp_path / 'elsewhere').mkdir()
  (tmp_path / 'elsewhere' / 'file').write_text('kept')
  (tmp_path / 'clone').mkdir()
  (tmp_path / 'clone' / '.venv').symlink_to(tmp_path / 'elsewhere')
  for name in ('Makefile', 'requirements.txt'):
    shutil.copy(_ROOT / name, tmp_path / 'clone')
  done = subprocess.run(
      ['make', 'test'], cwd=tmp_path / 'clone', capture_output=True, text=True, check=False
  )
  assert done.returncode == 2 and done.stderr.startswith('make: .venv is a link')
  assert (tmp_path / 'elsewhere' / 'file').read_text() == 'kept'
