"""A run's directory: its lock, config.json, weights, summary and ledgers."""

from collections.abc import Callable
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import socket
import sys
from typing import Any, BinaryIO, Optional

import numpy as np

from tasks import errors
from tasks.training import tables

CONFIG, SUMMARY, WEIGHTS = 'config.json', 'summary.json', 'weights.npz'
LEDGER, CHECKPOINTS, LOCK = 'privacy_ledger.jsonl', 'checkpoints', '.lock'
# Checkpoints lack the frozen body of --trainable=head.
BODY = f'{CHECKPOINTS}/body.npz'


class RunDirectory(contextlib.AbstractContextManager):
  """The files of one run, for one process at a time.

  metrics.csv, summary.json and weights.npz are equal in two runs of one seed, interrupted or not;
  times are in timings.csv. A row is on disk before the next round begins, and the other files
  appear only when they are whole.

  Attributes:
    path: The directory.
    config: The contents of config.json; None if there is no run to resume.
    tables: The run's tables.
  """

  def __init__(self, path: os.PathLike[str], overwrite: bool = False):
    """Makes the directory, and keeps other processes from it until the end of the context.

    Args:
      path: The directory.
      overwrite: Whether `begin` removes the run that is there.

    Raises:
      InputError: If the directory can't be written or is in use, or if its run can't be read.
    """
    self.path = pathlib.Path(path)
    self.tables = tables.Tables(self.path)
    self._overwrite = overwrite
    with errors.writing_to('output_dir', path):
      # A command that ends before its run begins removes them, innermost first.
      self._made = [path for path in (self.path, *self.path.parents) if not path.exists()]
      self.path.mkdir(parents=True, exist_ok=True)
      self._lock = open(self.path / LOCK, 'a+', encoding='utf-8')
    try:
      self._take_lock()
      self.config = None if overwrite else self._read_config()
    except BaseException:
      self._lock.close()
      raise

  def __exit__(self, *unused_error) -> None:
    if self._made:
      with contextlib.suppress(OSError):  # Another process may use a parent.
        (self.path / LOCK).unlink()
        for path in self._made:
          path.rmdir()
    self._lock.close()

  def begin(self, config: dict[str, Any], files: dict[str, Any]) -> None:
    """Begins a run; with `overwrite`, removes the files of the former run.

    Args:
      config: The contents of config.json.
      files: Contents of further JSON files, by name, which are there when config.json is.
    """
    self._made = []
    if self._overwrite:
      with tables.writing(self.path):
        # The configuration first: without it the other files are no run.
        for name in (CONFIG, SUMMARY, WEIGHTS):
          (self.path / name).unlink(missing_ok=True)
        self.tables.remove()
        if (self.path / CHECKPOINTS).exists():
          shutil.rmtree(self.path / CHECKPOINTS)
        # Releases can't be taken back.
        if (self.path / LEDGER).exists():
          number = max(map(_number, _former_ledgers(self.path)), default=0) + 1
          os.replace(self.path / LEDGER, self.path / f'privacy_ledger.{number}.jsonl')
    for name, content in files.items():
      self.write_json(name, content)
    self.write_json(CONFIG, config)
    self.config = config

  def write_json(self, name: str, content: dict[str, Any]) -> None:
    """Writes a JSON file."""
    # JSON has no infinity (epsilon without noise): it becomes the text 'inf'.
    content = json.loads(json.dumps(content), parse_constant=lambda name: str(float(name)))
    self._replace(name, lambda file: file.write((json.dumps(content, indent=2) + '\n').encode()))

  def write_weights(self, weights: Any, name: str = WEIGHTS) -> None:
    """Writes a `ModelWeights`, trainable and not, in order, as arrays of an .npz file."""
    import tensorflow as tf  # pylint: disable=g-import-not-at-top

    arrays = {
        f'{kind}_{position}': np.asarray(array)
        for kind in ('trainable', 'non_trainable')
        for position, array in enumerate(tf.nest.flatten(getattr(weights, kind)))
    }
    self._replace(name, lambda file: np.savez(file, **arrays))

  def _take_lock(self) -> None:
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      self._lock.seek(0)
      owner = self._lock.read().strip() or 'another process'
      raise errors.InputError(
          f'--output_dir={self.path} is in use by {owner}; wait until that ends, or'
          ' name another directory.'
      ) from None
    except OSError as error:
      print(
          f'tasks.run: {self.path} can\'t be locked ({error.strerror}): make sure that no other run'
          ' uses it.',
          file=sys.stderr,
      )
    with tables.writing(self.path):
      self._lock.truncate(0)
      self._lock.write(f'process {os.getpid()} on {socket.gethostname()}\n')
      self._lock.flush()

  def _read_config(self) -> Optional[dict[str, Any]]:
    if not any((self.path / name).exists() for name in (CONFIG, tables.METRICS)):
      return None
    try:
      config = json.loads((self.path / CONFIG).read_text(encoding='utf-8'))
      if 'run_id' not in config:
        raise ValueError('it has no run_id')
      return config
    except (OSError, ValueError, TypeError) as error:
      raise errors.InputError(
          f'--output_dir={self.path} has a run whose {CONFIG} can\'t be read'
          f' ({type(error).__name__}: {error}), so that it can\'t be resumed; restore it from a'
          ' backup, name another directory, or start over with --overwrite.'
      ) from None

  def _replace(self, name: str, write: Callable[[BinaryIO], Any]) -> None:
    """Writes a file that appears, or takes the place of the old one, when whole."""
    path = self.path / name
    unfinished = path.with_name(f'.{path.name}.unfinished')
    with tables.writing(path):
      path.parent.mkdir(exist_ok=True)
      try:
        with open(unfinished, 'wb') as file:
          write(file)
          file.flush()
          os.fsync(file.fileno())
        os.replace(unfinished, path)
      finally:
        unfinished.unlink(missing_ok=True)


def read_weights(path: pathlib.Path, like: tuple[Any, Any]) -> Any:
  """Returns the `ModelWeights` that `write_weights` wrote.

  Args:
    path: The file.
    like: Structures of the trainable and of the other weights.
  """
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  import tensorflow_federated as tff  # pylint: disable=g-import-not-at-top

  with np.load(path) as arrays:
    return tff.learning.models.ModelWeights(*(
        tf.nest.pack_sequence_as(
            structure, [arrays[f'{kind}_{i}'] for i in range(len(tf.nest.flatten(structure)))]
        )
        for kind, structure in zip(('trainable', 'non_trainable'), like)
    ))


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the contents of a run's JSON file; {} if it is missing or can't be read."""
  with contextlib.suppress(OSError, ValueError):
    if isinstance(content := json.loads(path.read_text(encoding='utf-8')), dict):
      return content
  return {}


def ledgers(run_dir: os.PathLike[str]) -> list[pathlib.Path]:
  """Returns the privacy ledgers of a run's directory: of overwritten runs, then its own."""
  own = pathlib.Path(run_dir) / LEDGER
  return [*_former_ledgers(own.parent), *([own] if own.exists() else [])]


def _former_ledgers(run_dir: pathlib.Path) -> list[pathlib.Path]:
  """Returns the ledgers of overwritten runs, in order."""
  paths = run_dir.glob('privacy_ledger.*.jsonl')
  return sorted((path for path in paths if path.suffixes[0][1:].isdigit()), key=_number)


def _number(path: pathlib.Path) -> int:
  return int(path.suffixes[0][1:])


def rounds_charged(run_dir: os.PathLike[str]) -> int:
  """Returns the most rounds that a row of a run's metrics.csv counts as charged; 0 without any."""
  rows = tables.Table(pathlib.Path(run_dir) / tables.METRICS).rows()
  counts = [row.get('rounds_charged') or '' for row in rows]
  return max(map(int, filter(str.isdigit, counts)), default=0)
