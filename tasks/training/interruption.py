"""SIGTERM and SIGINT: the round in flight may end, a second signal ends at once."""

from collections.abc import Iterator
import contextlib
import os
import select
import signal
import socket
import sys
import threading

import psutil

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
  """A signal asked the command to end.

  Attributes:
    status: The exit status that says so: 128 + the signal's number.
  """

  def __init__(self, number: int):
    super().__init__(f'ended by {signal.Signals(number).name}')
    self.status = 128 + number


class Interruption:
  """Ends a command on a signal: at once, or within `rounds` when it suits.

  A thread waits for the signals, since Python informs the main thread only between two
  bytecodes, and an operation of TensorFlow can take seconds.
  """

  def __init__(self, grace_seconds: float):
    self._grace = grace_seconds
    self._number = None
    self._in_rounds = False
    self._raised = False

  def check(self) -> None:
    """Raises `Interrupted` if a signal has come."""
    if self._number is not None:
      raise Interrupted(self._number)

  @contextlib.contextmanager
  def rounds(self) -> Iterator[None]:
    """In this block a signal is left to `check`, until the grace has passed."""
    self._in_rounds = True
    try:
      yield
    finally:
      self._in_rounds = False

  @contextlib.contextmanager
  def handled(self) -> Iterator[None]:
    """In this block the signals are handled; only in the main thread."""
    # A shell's background job has SIGINT ignored, and stays so.
    heard = [s for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = {s: signal.signal(s, self._on_signal) for s in [*heard, signal.SIGALRM]}
    wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=self._listen, args=(ours,), daemon=True)
    thread.start()
    hook, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
    try:
      yield
    except Exception as error:
      # What is raised within a callback of C++ can come out as another error.
      if self._raised:
        raise Interrupted(self._number) from error
      raise
    finally:
      signal.setitimer(signal.ITIMER_REAL, 0)
      sys.unraisablehook = hook
      signal.set_wakeup_fd(wakeup)
      for number, handler in before.items():
        signal.signal(number, handler)
      theirs.close()  # The thread reads the end.
      thread.join()
      ours.close()

  def _on_signal(self, number: int, unused_frame) -> None:
    if number != signal.SIGALRM:
      self._number = self._number or number
      if self._in_rounds:
        return
    self._raised = True
    raise Interrupted(self._number)

  def _on_unraisable(self, unraisable) -> None:
    """Python drops what a finalizer raises: then once more, a little later."""
    if isinstance(unraisable.exc_value, Interrupted):
      signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
      sys.__unraisablehook__(unraisable)

  def _listen(self, numbers: socket.socket) -> None:
    first = _next_signal(numbers)
    if first is None:
      return
    if self._in_rounds:
      _say(
          f'{signal.Signals(first).name}: the round in flight has'
          f' {self._grace:g} s to end; a second signal ends at once.'
      )
    second = _next_signal(numbers, self._grace)
    if second is _LATE:
      if self._in_rounds:
        _say('the round in flight is abandoned.')
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
      second = _next_signal(numbers)
    if second is not None:
      _say(f'{signal.Signals(second).name} again: ended.')
      _kill_children()
      # Files are whole at any time.
      os._exit(128 + second)


_LATE = object()


def _next_signal(numbers: socket.socket, timeout: float = None):
  """SIGTERM's or SIGINT's number, None at the end, `_LATE` after `timeout` seconds."""
  while True:
    ready, _, _ = select.select([numbers], [], [], timeout)
    if not ready:
      return _LATE
    number = numbers.recv(1)
    if not number:
      return None
    if number[0] in _SIGNALS:
      return number[0]


def _kill_children() -> None:
  # They would see by themselves that this process is gone; some of Ray's in a minute.
  with contextlib.suppress(psutil.Error):
    for child in psutil.Process().children(recursive=True):
      with contextlib.suppress(psutil.Error):
        child.kill()


def _say(text: str) -> None:
  print(f'\ntasks.run: {text}', file=sys.stderr, flush=True)
