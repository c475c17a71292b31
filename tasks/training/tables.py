"""A run's tables: a row per round, on disk before the next round."""

from collections.abc import Iterator
import contextlib
import csv
import hashlib
import io
import os
import pathlib
from typing import Any

import numpy as np

from fedsmp_tff import errors as library_errors
from tasks import errors

METRICS, TIMINGS = 'metrics.csv', 'timings.csv'


class Table:
  """A CSV file: a header, then the rows of rounds 0, 1, 2 ...

  Attributes:
    path: The file.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path
    self._digest = hashlib.sha256()

  def add(self, row: dict[str, Any]) -> None:
    """Adds a row; None values are left blank. Raises `RunError` if it can't be written."""
    text = io.StringIO(newline='')
    writer = csv.DictWriter(text, list(row))
    with writing(self.path.parent), open(self.path, 'ab') as file:
      if not file.tell():
        writer.writeheader()
      writer.writerow(row)
      file.write(text.getvalue().encode())
      file.flush()
      os.fsync(file.fileno())
    self._digest.update(text.getvalue().encode())

  def digest(self) -> np.ndarray:
    """Returns a digest of all rows so far, uint8[32]."""
    return np.frombuffer(self._digest.digest(), np.uint8)

  def rows(self) -> list[dict[str, str]]:
    """Reads the whole rows that are in the file; raises ValueError if it is damaged."""
    rows = parse(self._read())
    for number, row in enumerate(rows):
      if row.get('round') != str(number):
        raise ValueError(f'row {number} is not of round {number}')
    return rows

  def keep(self, rounds_done: int, digest: np.ndarray) -> None:
    """Removes the rows after round `rounds_done`.

    Raises:
      InputError: If the rows that stay have another digest.
      RunError: If the file can't be written.
    """
    content = self._read()
    kept = b''.join(content.splitlines(keepends=True)[: rounds_done + 2])
    self._digest = hashlib.sha256(kept)
    if not np.array_equal(self.digest(), digest):
      raise errors.InputError(
          f'{self.path} was cut or changed: it does not begin with the rows of rounds 0 to'
          f' {rounds_done} that the checkpoint recorded. Restore it from a backup, or start over'
          ' with --overwrite.'
      )
    if len(kept) < len(content):
      with writing(self.path.parent):
        os.truncate(self.path, len(kept))

  def _read(self) -> bytes:
    return self.path.read_bytes() if self.path.exists() else b''


def parse(file_bytes: bytes) -> list[dict[str, str]]:
  """Returns the whole rows of a table, by its header; raises ValueError if it is damaged."""
  content = file_bytes.decode()
  if '\0' in content:
    raise ValueError('it has zero bytes')
  # A full disk or a kill can end the file within a row.
  end = content.rfind('\n') + 1
  if '\r' in content[end:-1]:
    raise ValueError('its line ends were changed')
  try:
    rows = [*csv.DictReader(io.StringIO(content[:end], newline=''), strict=True)]
  except csv.Error as error:
    raise ValueError(str(error)) from None
  for number, row in enumerate(rows):
    if None in (*row, *row.values()):
      raise ValueError(f'row {number} has another number of fields than the header')
  return rows


def seconds(timings: Table) -> float:
  """Returns the duration of all rounds and evaluations of timings.csv."""
  names = ('round_seconds', 'evaluation_seconds')
  return sum(float(row[name]) for row in timings.rows() for name in names)


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
  """Raises `RunError` in this block if the path can't be written."""
  try:
    yield
  except OSError as error:
    raise errors.RunError(
        f'{path} can\'t be written ({library_errors.reason(error)}). Make room or give access'
        ' there, and run the same command again, without --overwrite, which resumes after the last'
        ' checkpoint.'
    ) from None
