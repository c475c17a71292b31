"""Finds and reads the files of data sets: an `InputError` names a missing or damaged one."""

from collections.abc import Iterator, Sequence
import contextlib
import pathlib

import numpy as np

from tasks import errors


def find(
    directories: Sequence[str | pathlib.Path], names: Sequence[str], remedy: str
) -> list[pathlib.Path]:
  """Returns the paths of files, from the first of the directories that has them all.

  A file FILE.gz may be there as FILE, unpacked.

  Raises:
    InputError: If no directory has them all; names a file that the first one lacks.
  """
  missing = []
  for directory in directories:
    paths = [
        path if path.is_file() or path.suffix != '.gz' else path.with_suffix('')
        for path in (pathlib.Path(directory, name) for name in names)
    ]
    if all(path.is_file() for path in paths):
      return paths
    missing += [pathlib.Path(directory, n) for n, p in zip(names, paths) if not p.is_file()]
  raise errors.InputError(f'{missing[0]} does not exist. {remedy}.')


@contextlib.contextmanager
def reading(path: pathlib.Path) -> Iterator[None]:
  """Raises `InputError` for any error of the block, which reads and checks this file."""
  try:
    yield
  except MemoryError:
    raise
  # Libraries raise many kinds of errors on a damaged file.
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise errors.InputError(
        f"{path} can't be read ({type(error).__name__}: {error}). Download it again."
    ) from None


def check_labels(labels: np.ndarray, lowest: int, highest: int) -> None:
  """Raises `ValueError` if a label is not an integer from `lowest` to `highest`."""
  # NaN compares false, and so is refused.
  is_valid = (lowest <= labels) & (labels <= highest) & (labels == np.floor(labels))
  if not np.all(is_valid):
    raise ValueError(f'label {labels[~is_valid][0]} is not one of {lowest} to {highest}')
