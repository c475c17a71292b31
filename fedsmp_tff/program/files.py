"""Writes files that appear only when they are complete."""

from collections.abc import Callable
import os
import pathlib
from typing import Any, BinaryIO

# One name per directory, so that the next write removes what an ended process has left.
_UNFINISHED = '.unfinished'


def replace(path: pathlib.Path, write: Callable[[BinaryIO], Any]) -> None:
  """Writes a file that appears, or replaces the old one, when it is complete and on disk.

  Only its owner can read it. One process at a time may call this for the files of a directory.

  Args:
    path: The file, in a directory that exists.
    write: Writes the content to a binary file.

  Raises:
    OSError: If it can't be written; an old file is intact.
  """
  unfinished = path.with_name(_UNFINISHED)
  try:
    unfinished.unlink(missing_ok=True)  # Of an ended process, or a link of somebody else's.
    with open(unfinished, 'xb', opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
      write(file)
      file.flush()
      os.fsync(file.fileno())
    os.replace(unfinished, path)
  finally:
    unfinished.unlink(missing_ok=True)
  descriptor = os.open(path.parent, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
