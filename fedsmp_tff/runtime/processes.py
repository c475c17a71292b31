"""Processes that end with the one that started them."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: int = signal.SIGKILL) -> None:
  """Has the kernel send this process a signal when its parent ends; Linux only."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
