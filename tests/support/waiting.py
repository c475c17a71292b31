"""Waits for events of other processes; the limit ends a test that hangs, not a slow machine's."""

from collections.abc import Callable, Collection
import time
from typing import TextIO

import psutil

SECONDS = 600


def until(happened: Callable[[], bool]):
  """Waits until `happened()` is true."""
  end = time.monotonic() + SECONDS
  while not happened():
    assert time.monotonic() < end
    time.sleep(0.05)


def until_ended(pids: Collection[int]):
  """Waits until no process runs; a zombie has ended."""
  until(lambda: not any(map(_runs, pids)))


def until_line(stream: TextIO, beginning: str):
  """Reads lines until a line with this beginning."""
  assert any(line.startswith(beginning) for line in stream), beginning


def _runs(pid: int) -> bool:
  try:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False
