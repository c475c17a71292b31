"""A CSV file of one row a round: rows are on disk when they are added, and can be taken back."""

from collections.abc import Iterator
import contextlib
import csv
import hashlib
import io
import os
import pathlib
from typing import Any

import numpy as np


class DamagedError(Exception):
  """A table was cut or changed."""


class Table:
  """A header, then the rows of rounds 0, 1, 2 ...

  Attributes:
    path: The file.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path
    self._file = None
    self._digest = hashlib.sha256()

  def close(self) -> None:
    if self._file is not None:
      with contextlib.suppress(OSError):  # Rows were flushed, or failed to be.
        self._file.close()

  def add(self, row: dict[str, Any]) -> None:
    """Adds a row; None values are left blank.

    Raises:
      OSError: If it can't be written.
    """
    if self._file is None:
      self._file = open(self.path, 'ab')
    text = io.StringIO(newline='')
    writer = csv.DictWriter(text, list(row))
    if not self._file.tell():
      writer.writeheader()
    writer.writerow(row)
    content = text.getvalue().encode()
    self._file.write(content)
    self._file.flush()
    os.fsync(self._file.fileno())
    self._digest.update(content)

  def digest(self) -> np.ndarray:
    """Returns a digest of all that was added, uint8[32]."""
    return np.frombuffer(self._digest.digest(), np.uint8)

  def rows(self) -> Iterator[dict[str, str]]:
    """The rows that are in the file."""
    return csv.DictReader(io.StringIO(self._read().decode(), newline=''))

  def num_rounds(self) -> int:
    """Counts the rounds that have a whole row in the file, without the row before the first."""
    return max(self._read().count(b'\n') - 2, 0)

  def keep(self, rounds_done: int, digest: np.ndarray) -> None:
    """Takes back the rows after that of `rounds_done`.

    Args:
      rounds_done: The last row that stays.
      digest: What `digest` returned after it.

    Raises:
      DamagedError: If the rows that stay are not those that were added.
      OSError: If the file can't be written.
    """
    content = self._read()
    lines = content.splitlines(keepends=True)[: rounds_done + 2]
    kept = b''.join(lines)
    self._digest = hashlib.sha256(kept)
    if not np.array_equal(self.digest(), digest):
      raise DamagedError(
          f'{self.path} was cut or changed: it does not begin with the rows of rounds'
          f' 0 to {rounds_done} that the checkpoint recorded'
      )
    if len(kept) < len(content):
      os.truncate(self.path, len(kept))

  def _read(self) -> bytes:
    return self.path.read_bytes() if self.path.exists() else b''
