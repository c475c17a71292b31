"""A run's directory: config.json, metrics.csv, timings.csv, events, weights, summary."""

from collections.abc import Callable, Iterator
import contextlib
import fcntl
import json
import math
import os
import pathlib
import shutil
import socket
import sys
from typing import Any, BinaryIO, Optional

import numpy as np
import tensorflow as tf

from fedsmp_tff import errors as library_errors
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import errors
from tasks.training import tables

_CONFIG, _METRICS, _TIMINGS = 'config.json', 'metrics.csv', 'timings.csv'
_SUMMARY, _WEIGHTS = 'summary.json', 'weights.npz'
_LEDGER, _FORMER_LEDGERS = 'privacy_ledger.jsonl', 'privacy_ledger.{}.jsonl'
_CHECKPOINTS, _EVENTS, _LOCK = 'checkpoints', 'events.out.tfevents.*', '.lock'


class RunDirectory:
  """The files of one run, for one process at a time.

  metrics.csv, summary.json and weights.npz hold nothing that differs between two runs
  of one seed, interrupted or not; times are in timings.csv. A row is on disk before
  the next round begins, and the other files appear only when they are whole.

  Attributes:
    path: Where.
    config: What config.json holds, if a run is there that can go on; else None.
  """

  def __init__(self, path: str, overwrite: bool):
    """Makes the directory, and keeps other processes from it until `close`.

    Args:
      path: Where; parents are made too.
      overwrite: Whether a run that is there gives way, once `begin` is called.

    Raises:
      InputError: If it can't be written, is in use, or holds a run that can't be
        read.
    """
    self.path = pathlib.Path(path)
    self._overwrite = overwrite
    self._tables = {
        name: tables.Table(self.path / name) for name in (_METRICS, _TIMINGS)
    }
    self._events = None
    self._begun = False
    with errors.writing_to('output_dir', path):
      self._made = not self.path.exists()
      self.path.mkdir(parents=True, exist_ok=True)
      self._lock = open(self.path / _LOCK, 'a+', encoding='utf-8')
    self._take_lock()
    try:
      self.config = None if overwrite else self._read_config()
    except errors.InputError:
      self._lock.close()
      raise

  @property
  def checkpoints(self) -> pathlib.Path:
    return self.path / _CHECKPOINTS

  def ledger(
      self, spec: spec_lib.PrivacySpec, run_id: str, seeded: bool, began: bool
  ) -> ledger_lib.Ledger:
    """The run's privacy ledger.

    Args:
      spec: What a round costs.
      run_id: Which run it is.
      seeded: Whether its noise follows from a seed.
      began: Whether rounds may have begun, so that there must be one.

    Raises:
      LedgerError: If it is damaged, lost or another run's, or can't be written.
    """
    path = self.path / _LEDGER
    if began and not path.exists():
      raise ledger_lib.LedgerError(
          f'{path} is missing, but the run has begun; put it back as it was.'
      )
    return ledger_lib.Ledger(path, spec, run_id, seeded=seeded)

  def __enter__(self) -> 'RunDirectory':
    return self

  def __exit__(self, *unused_error) -> None:
    self.close()

  def close(self) -> None:
    """Closes the files; takes back the directory, if no run has begun in it."""
    for table in self._tables.values():
      table.close()
    if self._events is not None:
      with contextlib.suppress(tf.errors.OpError):
        self._events.close()
    if self._made and not self._begun:
      with contextlib.suppress(OSError):
        (self.path / _LOCK).unlink()
        self.path.rmdir()
    self._lock.close()

  def begin(self, config: dict[str, Any]) -> None:
    """Begins a run; with `overwrite`, after what another has left is removed."""
    self._begun = True
    if self._overwrite:
      with _writing(self.path):
        # The configuration first: without it the other files are no run.
        for path in (
            self.path / _CONFIG, self.path / _SUMMARY, *self.path.glob('weights*.npz')
        ):
          path.unlink(missing_ok=True)
        self._remove_rows()
        if self.checkpoints.exists():
          shutil.rmtree(self.checkpoints)
        # What was released stays released.
        if (self.path / _LEDGER).exists():
          number = len(ledgers(self.path))
          os.replace(
              self.path / _LEDGER, self.path / _FORMER_LEDGERS.format(number)
          )
    self._write_json(_CONFIG, config)
    self.config = config

  def go_on(self, rounds_done: int, digests: dict[str, np.ndarray]) -> int:
    """Takes back the rows of rounds that are run again, in events too.

    Args:
      rounds_done: The rounds that are not run again.
      digests: What `digests` returned after them.

    Returns:
      How many rounds' rows were taken back.

    Raises:
      InputError: If rows of rounds that are not run again are not as they were.
    """
    self._begun = True
    again = max(self._tables[_METRICS].num_rounds() - rounds_done, 0)
    try:
      with _writing(self.path):
        for name, table in self._tables.items():
          table.keep(rounds_done, digests[name])
        self._remove_events()
        for row in self._tables[_METRICS].rows():
          step = int(row.pop('round'))
          self._add_events(step, {n: float(v) for n, v in row.items() if v})
    except tables.DamagedError as error:
      raise errors.InputError(
          f'{error}; put it back, or begin anew with --overwrite.'
      ) from None
    return again

  def go_on_without_checkpoint(self) -> None:
    """As `go_on`, for a run that ended before its first checkpoint.

    Raises:
      InputError: If there are rows of rounds, which have checkpoints.
    """
    self._begun = True
    table = self._tables[_METRICS]
    if table.num_rounds():
      raise errors.InputError(
          f'{table.path} has rows of {table.num_rounds()} rounds, but'
          f' {self.checkpoints} holds no checkpoint; put them back, or begin anew with'
          ' --overwrite.'
      )
    with _writing(self.path):
      self._remove_rows()

  def digests(self) -> dict[str, np.ndarray]:
    """Of each table's rows so far."""
    return {name: table.digest() for name, table in self._tables.items()}

  def write_summary(self, summary: dict[str, Any]) -> None:
    self._write_json(_SUMMARY, summary)

  def add_metrics(self, row: dict[str, Any]) -> None:
    """Adds a row; None values are left blank. `row['round']` is the step of events."""
    with _writing(self.path):
      self._tables[_METRICS].add(row)
      values = {n: v for n, v in row.items() if n != 'round' and v is not None}
      self._add_events(row['round'], values)

  def add_timings(self, row: dict[str, Any]) -> None:
    with _writing(self.path):
      self._tables[_TIMINGS].add(row)

  def seconds(self) -> float:
    """The time that all rounds took, those of earlier processes included."""
    return sum(
        float(row['round_seconds']) + float(row['evaluation_seconds'])
        for row in self._tables[_TIMINGS].rows()
    )

  def write_weights(self, weights: Any, average: Optional[str] = None) -> None:
    """Trainable and non-trainable weights, in order, as arrays of an .npz file.

    Args:
      weights: A `ModelWeights`.
      average: The name of the average that they are; None: the last weights.
    """
    arrays = {
        f'{kind}_{position}': np.asarray(array)
        for kind in ('trainable', 'non_trainable')
        for position, array in enumerate(tf.nest.flatten(getattr(weights, kind)))
    }
    name = f'weights_{average}.npz' if average else _WEIGHTS
    self._replace(name, lambda file: np.savez(file, **arrays))

  def _take_lock(self) -> None:
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      self._lock.seek(0)
      owner = self._lock.read().strip() or 'another process'
      self._lock.close()
      raise errors.InputError(
          f'--output_dir={self.path} is in use by {owner}; wait until that ends, or'
          ' name another directory.'
      ) from None
    except OSError as error:
      print(
          f'tasks.run: {self.path} can\'t be locked ({error.strerror}): see to it that'
          ' no other run uses it.',
          file=sys.stderr,
      )
    with _writing(self.path):
      self._lock.truncate(0)
      self._lock.write(f'process {os.getpid()} on {socket.gethostname()}\n')
      self._lock.flush()

  def _read_config(self) -> Optional[dict[str, Any]]:
    path = self.path / _CONFIG
    try:
      config = json.loads(path.read_text(encoding='utf-8'))
      if not isinstance(config, dict) or 'run_id' not in config:
        raise ValueError('it has no run_id')
      return config
    except FileNotFoundError:
      if not (self.path / _METRICS).exists():
        return None
      reason = 'it is missing'
    except (OSError, ValueError) as error:
      reason = str(error)
    raise errors.InputError(
        f'--output_dir={self.path} holds a run whose {_CONFIG} can\'t be read'
        f' ({reason}), so that it can\'t go on; put it back, name another directory,'
        ' or begin anew with --overwrite.'
    )

  def _remove_rows(self) -> None:
    for table in self._tables.values():
      table.path.unlink(missing_ok=True)
    self._remove_events()

  def _remove_events(self) -> None:
    for path in self.path.glob(_EVENTS):
      path.unlink()

  def _add_events(self, step: int, values: dict[str, float]) -> None:
    if self._events is None:
      self._events = tf.summary.create_file_writer(str(self.path))
    with self._events.as_default(step=step):
      for name, value in values.items():
        tf.summary.scalar(name, value)
    self._events.flush()

  def _write_json(self, name: str, content: dict[str, Any]) -> None:
    text = json.dumps(_finite(content), indent=2, allow_nan=False) + '\n'
    self._replace(name, lambda file: file.write(text.encode()))

  def _replace(self, name: str, write: Callable[[BinaryIO], Any]) -> None:
    """Writes a file that appears, or takes the place of the old one, when whole."""
    path = self.path / name
    unfinished = path.with_name(f'.{name}.unfinished')
    with _writing(path):
      try:
        with open(unfinished, 'wb') as file:
          write(file)
          file.flush()
          os.fsync(file.fileno())
        os.replace(unfinished, path)
      finally:
        unfinished.unlink(missing_ok=True)


def ledgers(run_dir: os.PathLike[str]) -> list[pathlib.Path]:
  """The privacy ledgers of a run's directory: of runs that were overwritten, then its own."""
  own = pathlib.Path(run_dir) / _LEDGER
  former = sorted(own.parent.glob(_FORMER_LEDGERS.format('[0-9]*')))
  return [*former, *([own] if own.exists() else [])]


def rounds_charged(run_dir: os.PathLike[str]) -> int:
  """The most rounds that a run's reports say were charged for; 0 without any."""
  path = pathlib.Path(run_dir) / _METRICS
  charged = [row.get('rounds_charged') for row in tables.Table(path).rows()]
  return max([int(c) for c in charged if c and c.isdigit()], default=0)


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except (OSError, tf.errors.OpError) as error:
    raise errors.RunError(
        f'{path} can\'t be written ({library_errors.reason(error)}); make room or give access there, and'
        ' run the same command again, which goes on after the last checkpoint.'
    ) from None


def _finite(content: Any) -> Any:
  """JSON has no infinity (epsilon without noise): it becomes the text 'inf'."""
  if isinstance(content, dict):
    return {name: _finite(value) for name, value in content.items()}
  if isinstance(content, float) and not math.isfinite(content):
    return str(content)
  return content
