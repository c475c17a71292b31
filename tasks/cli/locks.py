"""Locks a directory for one process at a time; the lock can be handed to a child process."""

import contextlib
import fcntl
import os
import pathlib
import sys
import time
from typing import IO, Optional

LOCK = '.lock'
# Name of the environment variable with the descriptor of a lock that the parent has taken.
DESCRIPTOR = 'FEDSMP_TFF_LOCK_DESCRIPTOR'
_SECONDS_FOR_A_LOOK = 0.2  # `tasks.sweep --status` holds a lock for less.


def open_locked(directory: pathlib.Path) -> Optional[IO[str]]:
  """Returns a directory's open lock file; None if another process has locked it.

  The lock ends with the last process that has the file open: a sweep hands it to its run.
  """
  path, end = directory / LOCK, time.monotonic() + _SECONDS_FOR_A_LOOK
  descriptor = _handed_over(path)
  while True:
    # Not another's file, to which a link may point: it would be cut.
    file = open(
        path if descriptor is None else descriptor, 'a+', encoding='utf-8', errors='replace',
        opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666),
    )
    descriptor = None  # `file` owns it, and closes it.
    os.set_inheritable(file.fileno(), False)  # To processes of this one.
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      file.close()
      if time.monotonic() > end:
        return None
      time.sleep(_SECONDS_FOR_A_LOOK / 10)
      continue
    except OSError as error:
      print(
          f'{directory} can\'t be locked ({error.strerror}): make sure that no other run uses it.',
          file=sys.stderr,
      )
    if _is_open_at(path, file.fileno()):
      return file
    file.close()  # Its last owner has removed it: a third process would lock another file.


def _handed_over(path: pathlib.Path) -> Optional[int]:
  """Returns the descriptor of a lock file that the parent process has locked for this one."""
  try:
    descriptor = int(os.environ.pop(DESCRIPTOR, ''))
  except ValueError:
    return None
  return descriptor if _is_open_at(path, descriptor) else None


def _is_open_at(path: pathlib.Path, descriptor: int) -> bool:
  with contextlib.suppress(OSError, OverflowError):
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  return False
