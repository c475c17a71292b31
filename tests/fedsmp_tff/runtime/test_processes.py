"""Tests of processes that end with the one that started them."""

import subprocess
import sys

import psutil

from tests.support import waiting

_PARENT = """
import subprocess, sys
from fedsmp_tff.runtime import processes
child = subprocess.Popen(['sleep', '6000'], preexec_fn=processes.end_with_parent)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_child_ends_when_its_parent_is_killed():
  parent = subprocess.Popen(
      [sys.executable, '-c', _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  )
  child = int(parent.stdout.readline())
  assert psutil.Process(child).status() != psutil.STATUS_ZOMBIE
  parent.kill()
  parent.wait()
  waiting.until_ended([child])
