"""SIGTERM and SIGINT end a run after the round in flight; outside of rounds, or again, at once."""

from collections.abc import Iterator
import contextlib
import os
import signal
import sys
import threading
import time

import psutil

from tasks import errors
from tasks.cli import command

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SECONDS_FOR_ONE = 2.0  # Within this time two SIGTERM are one request.


class Signals:
  """Handles the signals of a command.

  Attributes:
    program: The command, such as 'tasks.run'.
    next_step: How to resume, as the end of the sentence that a signal ended the command.
    in_round: Whether a round is in flight, which the first signal lets finish.
  """

  def __init__(self, program: str):
    self.program, self.next_step, self.in_round = program, '', False
    self._number, self._first = None, 0.0

  def begin_round(self) -> None:
    """Begins a round; raises `Interrupted` instead if a signal has come."""
    self.in_round = self._number is None
    if not self.in_round:
      raise errors.Interrupted(self._number, self.next_step)

  @contextlib.contextmanager
  def handled(self) -> Iterator[None]:
    """Handles the signals in this block, which is in the main thread."""
    # Python calls handlers between two bytecodes of the main thread, and a call of TensorFlow can
    # take seconds: a thread reads the number that Python writes as soon as a signal arrives.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    thread = threading.Thread(target=self._listen, args=(reader,), daemon=True)
    with contextlib.ExitStack() as stack:
      stack.callback(os.close, reader)
      stack.callback(thread.join)
      stack.callback(os.close, writer)  # Ends the thread.
      for number in _SIGNALS:
        # A background job of a shell ignores SIGINT, and continues to.
        if signal.getsignal(number) is not signal.SIG_IGN:
          before = signal.signal(number, lambda *_: None)
          stack.callback(signal.signal, number, before)
      stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writer))
      thread.start()
      yield

  def _listen(self, reader: int) -> None:
    while number := int.from_bytes(os.read(reader, 1)):
      if number not in _SIGNALS:
        continue
      # A batch system signals every process, and the sweep that started this one forwards its own.
      is_repeated = number == self._number == signal.SIGTERM
      if is_repeated and time.monotonic() < self._first + _SECONDS_FOR_ONE:
        continue
      if self.in_round and self._number is None:
        self._number, name = number, signal.Signals(number).name
        self._first = time.monotonic()
        self._say(f'{name}: the run ends after the round in flight; a second signal ends it at once.')
      else:
        self._say(errors.Interrupted(number, self.next_step))
        try:
          command.remove_generated_files()
          # Some of Ray's processes would notice only in a minute. Last, since Ray ends this
          # process, with another status, soon after them.
          for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
              child.kill()
        finally:
          os._exit(128 + number)  # Files are complete at any time.

  def _say(self, text: object) -> None:
    with contextlib.suppress(OSError):  # A full disk must not end the thread.
      print(f'\n{self.program}: {text}', file=sys.stderr, flush=True)
