"""Tests of the sentence on a process that Ray's C++ ends."""

import subprocess
import sys

import pytest

_PROGRAM = """
import os, sys
from tasks.cli import place
with place._watched():
  os.write(1, b'begun')
  {body}
"""


@pytest.mark.parametrize('body, is_said', [
    ('os._exit(1)', True), ('os.kill(os.getpid(), 9)', True), ('pass', False), ('sys.exit(1)', False)
])
def test_only_a_sudden_end_of_the_process_is_reported(body, is_said):
  done = subprocess.run(
      [sys.executable, '-c', _PROGRAM.format(body=body)], capture_output=True, text=True
  )
  assert done.stdout == 'begun'
  assert done.stderr.count('\n') == is_said == done.stderr.count('--output_dir resumes the run.')
