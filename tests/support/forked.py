"""`python -m MODULE` in a process that forks from one which has only imported TensorFlow and TFF.

It starts in a moment, where the imports take 2.6 s.
"""

from collections.abc import Mapping
import importlib
import multiprocessing
from multiprocessing import reduction
from multiprocessing import util
import os
import runpy
import sys
import tempfile
from typing import Any, Optional

_CONTEXT = multiprocessing.get_context('forkserver')
_CONTEXT.set_forkserver_preload(
    [f'tasks.training.{name}' for name in ('experiment', 'reporters', 'pretraining')]
)


class Process:
  """A command, with the methods of `subprocess.Popen` that tests use."""

  def __init__(self, module: str, arguments: list[str], constants: Mapping[str, Any]):
    """Starts a command; `constants` maps full names of modules' constants to other values."""
    pipes = [os.pipe() for _ in range(2)]
    self.stdout, self.stderr = (os.fdopen(read, encoding='utf-8') for read, _ in pipes)
    self._process = _CONTEXT.Process(target=_run, args=(
        module, arguments, dict(constants), dict(os.environ),
        [reduction.DupFd(write) for _, write in pipes],
    ))
    self._process.start()
    for _, write in pipes:
      os.close(write)
    self.pid = self._process.pid
    self.kill = self._process.kill
    # If a test fails before its end; before multiprocessing waits for it.
    util.Finalize(self, _end, (self._process,), exitpriority=0)

  def poll(self) -> Optional[int]:
    return self._process.exitcode

  returncode = property(poll)

  def wait(self, timeout: Optional[float] = None) -> Optional[int]:
    self._process.join(timeout)
    assert self.returncode is not None, f'still running after {timeout} s'
    return self.returncode

  def send_signal(self, number: int) -> None:
    os.kill(self.pid, number)

  def communicate(self, timeout: Optional[float] = None) -> tuple[str, str]:
    """Waits until it has ended; returns its unread output."""
    # Both streams together are shorter than a pipe's 64 KiB.
    self.wait(timeout)
    return self.stdout.read(), self.stderr.read()


def _end(process):
  if process.exitcode is None:  # Else another process can have its id by now.
    process.kill()


def _run(module, arguments, constants, environment, ends):
  """Runs in the child."""
  for number, end in enumerate(ends, 1):
    os.dup2(end.detach(), number)
  os.environ.clear()
  os.environ.update(environment)
  tempfile.tempdir = None  # Read from the environment again.
  multiprocessing.set_start_method('fork', force=True)  # As in a process of its own.
  for name, value in constants.items():
    parent, _, constant = name.rpartition('.')
    setattr(importlib.import_module(parent), constant, value)
  sys.argv = [module, *arguments]
  runpy.run_module(module, {}, '__main__', alter_sys=True)
