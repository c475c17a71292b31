"""A run's tables, metrics.csv and timings.csv: a row per round, on disk before the next round begins."""

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
_EVENTS = 'events.out.tfevents.*'


class Table:
  """A CSV file: a header, then the rows of rounds 0, 1, 2 ...

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
      RunError: If it can't be written.
    """
    text = io.StringIO(newline='')
    writer = csv.DictWriter(text, list(row))
    with writing(self.path.parent):
      if self._file is None:
        self._file = open(self.path, 'ab')
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
    """Reads the rows that are in the file."""
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
      InputError: If the rows that stay are not those that were added.
      RunError: If the file can't be written.
    """
    content = self._read()
    kept = b''.join(content.splitlines(keepends=True)[: rounds_done + 2])
    self._digest = hashlib.sha256(kept)
    if not np.array_equal(self.digest(), digest):
      raise errors.InputError(
          f'{self.path} was cut or changed: it does not begin with the rows of rounds 0 to'
          f' {rounds_done} that the checkpoint recorded; restore it from a backup, or start over with'
          ' --overwrite.'
      )
    if len(kept) < len(content):
      with writing(self.path.parent):
        os.truncate(self.path, len(kept))

  def _read(self) -> bytes:
    return self.path.read_bytes() if self.path.exists() else b''


class Tables:
  """The tables of one run.

  Attributes:
    metrics: metrics.csv: nothing in it differs between two runs of one seed.
    timings: timings.csv.
  """

  def __init__(self, directory: pathlib.Path):
    self._directory = directory
    self.metrics, self.timings = Table(directory / METRICS), Table(directory / TIMINGS)
    self._both = {METRICS: self.metrics, TIMINGS: self.timings}

  def close(self) -> None:
    """Closes the files."""
    for table in self._both.values():
      table.close()

  def resume(self, rounds_done: int, digests: dict[str, np.ndarray]) -> int:
    """Removes the rows of rounds that are run again.

    Args:
      rounds_done: The rounds that are not run again.
      digests: What `digests` returned after them.

    Returns:
      Number of rounds whose rows were removed.

    Raises:
      InputError: If rows of rounds that are not run again are not as they were.
    """
    again = max(self.metrics.num_rounds() - rounds_done, 0)
    for name, table in self._both.items():
      table.keep(rounds_done, digests[name])
    return again

  def resume_without_checkpoint(self, checkpoints: pathlib.Path) -> None:
    """As `resume`, for a run that ended before its first checkpoint.

    Args:
      checkpoints: The directory that has none.

    Raises:
      InputError: If there are rows of rounds, which have checkpoints.
    """
    if num := self.metrics.num_rounds():
      raise errors.InputError(
          f'{self.metrics.path} has rows of {num} rounds, but {checkpoints} has no checkpoint; restore'
          ' them from a backup, or start over with --overwrite.'
      )
    with writing(self._directory):
      self.remove()

  def paths(self) -> list[pathlib.Path]:
    """Lists the files."""
    return [table.path for table in self._both.values()]

  def digests(self) -> dict[str, np.ndarray]:
    """Returns a digest of each table's rows so far."""
    return {name: table.digest() for name, table in self._both.items()}

  def measured_round(self) -> int:
    """Returns the last round after which accuracy was measured; 0 before the first."""
    rows = self.metrics.rows()
    return max((int(row['round']) for row in rows if row['test_accuracy']), default=0)

  def seconds(self) -> float:
    """Returns the time that all rounds took, those of earlier processes included."""
    return sum(
        float(row['round_seconds']) + float(row['evaluation_seconds'])
        for row in self.timings.rows()
    )

  def remove(self) -> None:
    """Removes all rows, and the TensorBoard events of the same rounds."""
    for path in [*self.paths(), *self._directory.glob(_EVENTS)]:
      path.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
  """Raises `RunError` in this block if the path can't be written."""
  try:
    yield
  except OSError as error:
    raise errors.RunError(
        f'{path} can\'t be written ({library_errors.reason(error)}); make room or give access'
        ' there, and run the same command again, which resumes after the last checkpoint.'
    ) from None
