"""Tests that docs/slurm's job array hands signals and results on, and leaves no directory."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.support import commands
from tests.support import waiting

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).parents[2]


def test_sigterm_ends_after_the_round_and_leaves_nothing(data_dir, tmp_path):
  grid = tmp_path / 'my.grid'
  flags = [flag for flag in commands.tiny(data_dir, '')[1:] if 'output_dir' not in flag]
  grid.write_text(' '.join([*flags, '--rounds=100000']))
  (tmp_path / '.venv').symlink_to(sys.prefix)
  (temporary := tmp_path / 'tmp').mkdir()
  job = subprocess.Popen(  # As an array's first job.
      ['bash', _ROOT / 'docs' / 'slurm' / 'array.sbatch', f'--grid={grid}',
       f'--sweep_dir={tmp_path / "runs"}'],
      cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
      env={
          **os.environ, 'SLURM_JOB_ID': '7', 'SLURM_ARRAY_TASK_ID': '0', 'TMPDIR': str(temporary),
      },
  )

  def has_rounds():
    assert job.poll() is None, job.communicate()
    tables = tmp_path.glob('runs/*/metrics.csv')
    return any(len(table.read_bytes().splitlines()) > 3 for table in tables)

  waiting.until(has_rounds)
  assert [*temporary.iterdir()]
  job.send_signal(signal.SIGTERM)
  _, err = job.communicate(timeout=waiting.SECONDS)
  assert job.returncode == 143, err
  assert [*tmp_path.glob('runs/*/summary.json')] and not [*temporary.iterdir()]
