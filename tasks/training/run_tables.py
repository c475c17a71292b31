"""A run's tables: metrics.csv and timings.csv, a row a round."""

from collections.abc import Iterator
import contextlib
import pathlib
from typing import Any

import numpy as np

from fedsmp_tff import errors as library_errors
from tasks import errors
from tasks.training import tables

METRICS, _TIMINGS = 'metrics.csv', 'timings.csv'
_EVENTS = 'events.out.tfevents.*'


class RunTables:
  """The tables of one run; a row is on disk before the next round begins."""

  def __init__(self, directory: pathlib.Path):
    self._directory = directory
    self._tables = {name: tables.Table(directory / name) for name in (METRICS, _TIMINGS)}

  def close(self) -> None:
    """Closes the files."""
    for table in self._tables.values():
      table.close()

  def resume(self, rounds_done: int, digests: dict[str, np.ndarray]) -> int:
    """Removes the rows of rounds that are run again.

    Args:
      rounds_done: The rounds that are not run again.
      digests: What `digests` returned after them.

    Returns:
      How many rounds' rows were removed.

    Raises:
      InputError: If rows of rounds that are not run again are not as they were.
    """
    again = max(self._tables[METRICS].num_rounds() - rounds_done, 0)
    try:
      with writing(self._directory):
        for name, table in self._tables.items():
          table.keep(rounds_done, digests[name])
    except tables.DamagedError as error:
      raise errors.InputError(
          f'{error}; restore it from a backup, or start over with --overwrite.'
      ) from None
    return again

  def resume_without_checkpoint(self, checkpoints: pathlib.Path) -> None:
    """As `resume`, for a run that ended before its first checkpoint.

    Args:
      checkpoints: The directory that has none.

    Raises:
      InputError: If there are rows of rounds, which have checkpoints.
    """
    table = self._tables[METRICS]
    if table.num_rounds():
      raise errors.InputError(
          f'{table.path} has rows of {table.num_rounds()} rounds, but'
          f' {checkpoints} has no checkpoint; restore them from a backup, or start over with'
          ' --overwrite.'
      )
    with writing(self._directory):
      self.remove()

  def paths(self) -> list[pathlib.Path]:
    """The files of the tables."""
    return [table.path for table in self._tables.values()]

  def digests(self) -> dict[str, np.ndarray]:
    """Returns a digest of each table's rows so far."""
    return {name: table.digest() for name, table in self._tables.items()}

  def add_metrics(self, row: dict[str, Any]) -> None:
    """Adds a row; None values are left blank."""
    with writing(self._directory):
      self._tables[METRICS].add(row)

  def add_timings(self, row: dict[str, Any]) -> None:
    with writing(self._directory):
      self._tables[_TIMINGS].add(row)

  def measured_round(self) -> int:
    """The last round after which accuracy was measured; 0 before the first."""
    rows = self._tables[METRICS].rows()
    return max((int(row['round']) for row in rows if row['test_accuracy']), default=0)

  def seconds(self) -> float:
    """The time that all rounds took, those of earlier processes included."""
    return sum(
        float(row['round_seconds']) + float(row['evaluation_seconds'])
        for row in self._tables[_TIMINGS].rows()
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
