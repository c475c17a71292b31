"""Tests of the sentence on a process that Ray's C++ ends."""

import subprocess
import sys

import pytest

_PROGRAM = """
import os, sys
import psutil
from tasks.training import runtime_flags
def kill(processes):
  for process in processes:
    process.kill()
with runtime_flags._watched():
  while len(psutil.Process().children(recursive=True)) < 2:  # The shell and its child.
    pass
  os.write(1, b'begun')
  {body}
"""


@pytest.mark.parametrize('body, is_said', [
    ('os._exit(1)', True),
    ('os.kill(os.getpid(), 9)', True),
    # As Ray's C++ may: see `kill_child_processes_on_worker_exit` in Ray's documentation.
    ('kill(psutil.Process().children()); os._exit(1)', True),
    # As `signals`, which has said its own sentence.
    ('kill(psutil.Process().children(recursive=True)); os._exit(1)', False),
    ('pass', False),
    ('sys.exit(1)', False),
])
def test_an_end_without_python_is_said_and_another_is_not(body, is_said):
  done = subprocess.run(
      [sys.executable, '-c', _PROGRAM.format(body=body)], capture_output=True, text=True
  )
  assert done.stdout == 'begun'
  assert done.stderr.count('\n') == is_said == done.stderr.count('--output_dir resumes a run.')
