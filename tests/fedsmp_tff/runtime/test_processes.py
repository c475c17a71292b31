"""Tests of processes that end with the one that started them."""

import pathlib
import subprocess
import sys
import time

_PARENT = """
import subprocess, sys
from fedsmp_tff.runtime import processes
child = subprocess.Popen(['sleep', '600'], preexec_fn=processes.end_with_parent)
print(child.pid, flush=True)
sys.stdin.read()
"""
_MOST_SECONDS = 30


def _runs(pid):
  stat = pathlib.Path(f'/proc/{pid}/stat')
  try:
    return stat.read_text().rpartition(')')[2].split()[0] != 'Z'
  except FileNotFoundError:
    return False


def test_a_child_ends_when_its_parent_is_killed():
  parent = subprocess.Popen(
      [sys.executable, '-c', _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  )
  child = int(parent.stdout.readline())
  assert _runs(child)
  parent.kill()
  parent.wait()
  deadline = time.monotonic() + _MOST_SECONDS
  while _runs(child):
    assert time.monotonic() < deadline
    time.sleep(0.05)
