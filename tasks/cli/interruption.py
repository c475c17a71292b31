"""Handles SIGTERM and SIGINT: the round in flight may finish; a second signal ends all at once."""

from collections.abc import Callable, Iterator
import contextlib
import os
import select
import signal
import socket
import sys
import threading
from typing import Any, NoReturn, Optional

import psutil

from tasks.cli import command

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Time for a round in flight to end.
_GRACE_SECONDS = 20.0
# Time for the callback to end in which Python discarded an exception.
_AGAIN_SECONDS = 0.1
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
  """Ends a command on a signal: after the round in flight, or at once if there is none.

  A thread waits for the signals, since Python informs the main thread only between two
  bytecodes, and an operation of TensorFlow can take seconds.

  Attributes:
    next_step: How to resume, as the end of the sentence that a signal ended the command.
    before_end: Called before the process ends at once.
  """

  def __init__(self):
    self.next_step = ''
    self.before_end: Callable[[], None] = lambda: None
    self._number: Optional[int] = None
    self._in_round = False
    self._abandoned = False
    self._hook_before = sys.unraisablehook

  def check(self) -> None:
    """Raises `Interrupted` after a signal; else a round begins, which a signal lets finish."""
    self._in_round = self._number is None
    if not self._in_round:
      raise self._interrupted()

  @contextlib.contextmanager
  def rounds(self) -> Iterator[None]:
    """Marks the block of the rounds, after which no round is in flight."""
    try:
      yield
      self._abandoned = False
    finally:
      self._in_round = False

  def reason(self, error: BaseException) -> BaseException:
    """Returns why the rounds ended: Ray raises a `KeyboardInterrupt` for an `Interrupted`."""
    is_signal = isinstance(error, KeyboardInterrupt) and self._number is not None
    return self._interrupted() if is_signal else error

  @contextlib.contextmanager
  def handled(self, failures: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Handles the signals in its block, in the main thread only; `failures` stay what they are."""
    # A background job of a shell ignores SIGINT, and continues to.
    handled_signals = [s for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = {s: signal.signal(s, self._on_signal) for s in handled_signals}
    alarm_before = signal.signal(signal.SIGALRM, self._on_signal)
    self._hook_before, sys.unraisablehook = sys.unraisablehook, self._on_discarded
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=self._listen, args=(reader,), daemon=True)
    thread.start()
    try:
      yield
    except failures:
      raise
    except Exception as error:
      # An exception that is raised within a callback of C++ can come out as another error.
      if self._abandoned:
        raise self._interrupted() from error
      raise
    finally:
      signal.set_wakeup_fd(wakeup)
      for number, handler in before.items():
        signal.signal(number, handler)
      writer.close()  # The thread reads the end.
      thread.join()
      reader.close()
      # Nobody sends SIGALRM from here on; its default action ends the process.
      signal.setitimer(signal.ITIMER_REAL, 0)
      signal.signal(signal.SIGALRM, alarm_before)
      sys.unraisablehook = self._hook_before

  def _interrupted(self) -> Interrupted:
    return Interrupted(self._number, self.next_step)

  def _on_signal(self, number: int, unused_frame) -> None:
    """Abandons the round in flight on SIGALRM; `_listen` handles the other signals."""
    if number == signal.SIGALRM and self._in_round:
      self._in_round, self._abandoned = False, True
      raise self._interrupted()

  def _on_discarded(self, discarded: Any) -> None:
    """Abandons the round again if Python discarded `Interrupted`, as it does in a `__del__`."""
    if isinstance(discarded.exc_value, Interrupted):
      self._in_round = True
      signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    else:
      self._hook_before(discarded)

  def _listen(self, numbers: socket.socket) -> None:
    first = _next_signal(numbers)
    if first is None:
      return
    if not self._in_round:
      self._end(first, str(Interrupted(first, self.next_step)))
    self._number = first
    _say(
        f'{signal.Signals(first).name}: the round in flight has'
        f' {_GRACE_SECONDS:g} s to finish; a second signal ends the run at once.'
    )
    second = _next_signal(numbers, _GRACE_SECONDS)
    if second is _LATE:
      if self._in_round:
        _say('the round in flight is abandoned.')
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
      second = _next_signal(numbers)
    if second is not None:
      self._end(second, f'{signal.Signals(second).name} again: ended{self.next_step}')

  def _end(self, number: int, text: str) -> NoReturn:
    """Ends the process, whatever its main thread does; files are complete at any time."""
    _say(text)
    self.before_end()
    command.remove_generated_files()
    # Children would notice the end of this process by themselves; some of Ray's in a minute. Last:
    # Ray ends this process, with another status, soon after its children have ended.
    with contextlib.suppress(psutil.Error):
      for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
          child.kill()
    os._exit(128 + number)


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


def _say(text: str) -> None:
  with contextlib.suppress(OSError):  # A full disk must not end the thread.
    print(f'\ntasks.run: {text}', file=sys.stderr, flush=True)
