"""SIGTERM and SIGINT: the round in flight may end, a second signal ends at once."""

from collections.abc import Iterator
import contextlib
import os
import select
import signal
import socket
import sys
import threading
from typing import NoReturn

import psutil

from tasks.cli import command

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Before the rounds there is no work to lose: an operation of TensorFlow in flight gets no longer.
_SECONDS_BEFORE_ROUNDS = 3.0
# Time for a round in flight to end.
_GRACE_SECONDS = 20.0
_LATE = object()


class Interrupted(KeyboardInterrupt):
  """A signal asked the command to end; `next_step` ends the sentence with how to resume.

  Attributes:
    status: The exit status: 128 + the signal's number.
  """

  def __init__(self, number: int, next_step: str = ''):
    super().__init__(f'ended by {signal.Signals(number).name}{next_step}')
    self.status = 128 + number


class Interruption:
  """Ends a command on a signal: within `rounds` after the round in flight, elsewhere at once.

  A thread waits for the signals, since Python informs the main thread only between two
  bytecodes, and an operation of TensorFlow can take seconds.

  Attributes:
    next_step: How to resume, as the end of the sentence that a signal ended the command.
  """

  def __init__(self):
    self.next_step = ''
    self._number = None
    self._may_defer = False
    self._in_rounds = False
    self._raised = False

  def check(self) -> None:
    """Raises `Interrupted` if a signal has come; else a round may begin."""
    self._in_rounds = self._may_defer
    if self._number is not None:
      raise self._interrupted()

  @contextlib.contextmanager
  def rounds(self) -> Iterator[None]:
    """In this block, from the first `check` on, a signal is left to the next, within the grace."""
    self._may_defer = True
    try:
      yield
    finally:
      self._may_defer = self._in_rounds = False

  @contextlib.contextmanager
  def handled(self) -> Iterator[None]:
    """In this block the signals are handled; only in the main thread."""
    # A background job of a shell ignores SIGINT, and continues to.
    handled_signals = [s for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = {s: signal.signal(s, self._on_signal) for s in [*handled_signals, signal.SIGALRM]}
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=self._listen, args=(reader,), daemon=True)
    thread.start()
    hook, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
    try:
      yield
    except Exception as error:
      # An exception that is raised within a callback of C++ can come out as another error.
      if self._raised:
        raise self._interrupted() from error
      raise
    finally:
      signal.setitimer(signal.ITIMER_REAL, 0)
      sys.unraisablehook = hook
      signal.set_wakeup_fd(wakeup)
      for number, handler in before.items():
        signal.signal(number, handler)
      writer.close()  # The thread reads the end.
      thread.join()
      reader.close()

  def _interrupted(self) -> Interrupted:
    return Interrupted(self._number, self.next_step)

  def _on_signal(self, number: int, unused_frame) -> None:
    if number != signal.SIGALRM:
      self._number = self._number or number
      if self._in_rounds:
        return
    self._raised = True
    raise self._interrupted()

  def _on_unraisable(self, unraisable) -> None:
    """Raises again, a little later, what Python drops because a finalizer raised it."""
    if isinstance(unraisable.exc_value, Interrupted):
      signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
      sys.__unraisablehook__(unraisable)

  def _listen(self, numbers: socket.socket) -> None:
    first = _next_signal(numbers)
    if first is None:
      return
    if not self._in_rounds:
      second = _next_signal(numbers, _SECONDS_BEFORE_ROUNDS)
      if second is _LATE:
        _end(first, str(Interrupted(first, self.next_step)))
    else:
      _say(
          f'{signal.Signals(first).name}: the round in flight has'
          f' {_GRACE_SECONDS:g} s to end; a second signal ends at once.'
      )
      second = _next_signal(numbers, _GRACE_SECONDS)
      if second is _LATE:
        if self._in_rounds:
          _say('the round in flight is abandoned.')
          signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
        second = _next_signal(numbers)
    if second is not None:
      _end(second, f'{signal.Signals(second).name} again: ended{self.next_step}')


def _next_signal(numbers: socket.socket, timeout: float = None):
  """Returns the number of SIGTERM or SIGINT, None at the end, `_LATE` after `timeout` seconds."""
  while True:
    if not select.select([numbers], [], [], timeout)[0]:
      return _LATE
    number = numbers.recv(1)
    if not number:
      return None
    if number[0] in _SIGNALS:
      return number[0]


def _end(number: int, text: str) -> NoReturn:
  """Ends the process, whatever its main thread does; files are whole at any time."""
  _say(text)
  # Children would notice the end of this process by themselves; some of Ray's in a minute.
  with contextlib.suppress(psutil.Error):
    for child in psutil.Process().children(recursive=True):
      with contextlib.suppress(psutil.Error):
        child.kill()
  command.remove_generated_files()
  os._exit(128 + number)


def _say(text: str) -> None:
  print(f'\ntasks.run: {text}', file=sys.stderr, flush=True)
