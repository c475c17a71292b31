"""A run's directory: its lock, config.json, weights, summary and ledgers."""

from collections.abc import Callable
import contextlib
import fcntl
import json
import math
import os
import pathlib
import shutil
import socket
import sys
import time
from typing import Any, BinaryIO, Optional

import numpy as np

from fedsmp_tff.privacy import budget as budget_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import errors
from tasks.training import tables

CONFIG, SUMMARY, WEIGHTS = 'config.json', 'summary.json', 'weights.npz'
LEDGER, _FORMER_LEDGERS = 'privacy_ledger.jsonl', 'privacy_ledger.{}.jsonl'
CHECKPOINTS, LOCK = 'checkpoints', '.lock'
# What no round of --trainable=head changes, and checkpoints do not have.
BODY = f'{CHECKPOINTS}/body.npz'


class RunDirectory:
  """The files of one run, for one process at a time.

  metrics.csv, summary.json and weights.npz have nothing that differs between two runs
  of one seed, interrupted or not; times are in timings.csv. A row is on disk before
  the next round begins, and the other files appear only when they are whole.

  Attributes:
    path: The directory.
    config: The contents of config.json, if it is of a run that can be resumed; else None.
    tables: The run's tables.
  """

  def __init__(self, path: str, overwrite: bool):
    """Makes the directory, and keeps other processes from it until `close`.

    Args:
      path: Where; parents are made too.
      overwrite: Whether a run that is there gives way, once `begin` is called.

    Raises:
      InputError: If it can't be written, is in use, or has a run that can't be
        read.
    """
    self.path = pathlib.Path(path)
    self._overwrite = overwrite
    self.tables = tables.Tables(self.path)
    self._begun = False
    self._opened_at = time.monotonic()
    with errors.writing_to('output_dir', path):
      # What `close` takes back, innermost first.
      self._made = [path for path in (self.path, *self.path.parents) if not path.exists()]
      self.path.mkdir(parents=True, exist_ok=True)
      self._lock = open(self.path / LOCK, 'a+', encoding='utf-8')
    self._take_lock()
    try:
      self.config = None if overwrite else self._read_config()
    except errors.InputError:
      self._lock.close()
      raise

  @property
  def checkpoints(self) -> pathlib.Path:
    return self.path / CHECKPOINTS

  def ledger(
      self,
      spec: spec_lib.PrivacySpec,
      run_id: str,
      seed: Optional[int],
      data: str,
      initial_weights: str,
      began: bool,
      epsilon_budget: Optional[float] = None,
  ) -> ledger_lib.Ledger:
    """The run's privacy ledger.

    Args:
      spec: What a round costs.
      run_id: Which run it is.
      seed: The seed that its noise follows from; None: noise is fresh.
      data: The name of the data.
      initial_weights: The initialization of the model.
      began: Whether rounds may have begun, so that there must be one.
      epsilon_budget: What it and the runs that it has overwritten may spend; None: any epsilon.

    Raises:
      InputError: If the runs that it has overwritten can't be composed with it.
      LedgerError: If it is damaged, lost or another run's, or can't be written.
    """
    path = self.path / LEDGER
    if began and not path.exists():
      raise ledger_lib.LedgerError(
          f'{path} is missing, but the run has begun; {ledger_lib.REMEDY}.'
      )
    budget = None
    if epsilon_budget is not None:
      budget = self._budget(epsilon_budget, spec)
    ledger = ledger_lib.Ledger(
        path, spec, run_id, seed=seed, data=data, initial_weights=initial_weights, budget=budget
    )
    if budget is not None:
      ledger_lib.check_independent(
          [(path, ledger_lib.read(path)) for path in ledgers(self.path)]
      )
    return ledger

  def check_clients(self, data: str) -> None:
    """Raises `InputError` if runs that a budget must include have other clients.

    Args:
      data: The name of the data, as `ledger` takes it.
    """
    paths = ledgers(self.path) if self.config is None else _former_ledgers(self.path)
    named = {ledger_lib.read(path).data or 'unnamed data' for path in paths}
    if others := sorted(named - {data}):
      raise errors.InputError(
          f'--epsilon_budget can\'t include the runs that --overwrite replaces in {self.path}: they'
          f' have other clients ({", ".join(others)}; this run: {data}), and one person may be in'
          ' several of them; name another directory.'
      )

  def _budget(self, epsilon: float, spec: spec_lib.PrivacySpec) -> budget_lib.EpsilonBudget:
    """A budget that includes what the overwritten runs have spent."""
    before = [ledger_lib.read(path) for path in _former_ledgers(self.path)]
    try:
      return budget_lib.EpsilonBudget(epsilon, spec, [record.charged for record in before])
    except ValueError as error:
      raise errors.as_flags(error, ('epsilon_budget', 'sampling')) from None

  def __enter__(self) -> 'RunDirectory':
    return self

  def __exit__(self, *unused_error) -> None:
    self.close()

  def close(self) -> None:
    """Closes the files; takes back the directories that it made, if no run has begun."""
    self.tables.close()
    if self._made and not self._begun:
      with contextlib.suppress(OSError):  # Another process may be at one.
        (self.path / LOCK).unlink()
        for path in self._made:
          path.rmdir()
    self._lock.close()

  def begin(self, config: dict[str, Any]) -> None:
    """Begins a run; with `overwrite`, removes what another run has left."""
    self._begun = True
    if self._overwrite:
      with tables.writing(self.path):
        # The configuration first: without it the other files are no run.
        for path in (
            self.path / CONFIG, self.path / SUMMARY, *self.path.glob('weights*.npz')
        ):
          path.unlink(missing_ok=True)
        self.tables.remove()
        if self.checkpoints.exists():
          shutil.rmtree(self.checkpoints)
        # What was released stays released.
        if (self.path / LEDGER).exists():
          os.replace(self.path / LEDGER, self._next_former_ledger())
    self._write_json(CONFIG, config)
    self.config = config

  def record(self, facts: dict[str, Any]) -> None:
    """Adds facts to the record of config.json: what happened, not what was asked for."""
    self.config.setdefault('record', {}).update(facts)
    self._write_json(CONFIG, self.config)

  def write_summary(self, summary: dict[str, Any]) -> None:
    """Writes summary.json, the last file of a run, and before it the duration to config.json.

    The record's `seconds` add up over the processes of the run; a killed process adds none.
    """
    before = self.config.get('record', {}).get('seconds', 0)
    self.record({'seconds': round(before + time.monotonic() - self._opened_at, 1)})
    self._write_json(SUMMARY, summary)

  def write_weights(self, weights: Any, name: str = WEIGHTS) -> None:
    """Writes a `ModelWeights`, trainable and not, in order, as arrays of an .npz file."""
    import tensorflow as tf  # pylint: disable=g-import-not-at-top

    arrays = {
        f'{kind}_{position}': np.asarray(array)
        for kind in ('trainable', 'non_trainable')
        for position, array in enumerate(tf.nest.flatten(getattr(weights, kind)))
    }
    self._replace(name, lambda file: np.savez(file, **arrays))

  def _next_former_ledger(self) -> pathlib.Path:
    """The path of one more former ledger: no path of another, whichever are missing."""
    numbers = [_number(path) for path in _former_ledgers(self.path)]
    return self.path / _FORMER_LEDGERS.format(max(numbers, default=0) + 1)

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
    with tables.writing(self.path):
      self._lock.truncate(0)
      self._lock.write(f'process {os.getpid()} on {socket.gethostname()}\n')
      self._lock.flush()

  def _read_config(self) -> Optional[dict[str, Any]]:
    path = self.path / CONFIG
    try:
      config = json.loads(path.read_text(encoding='utf-8'))
      if not isinstance(config, dict) or 'run_id' not in config:
        raise ValueError('it has no run_id')
      return config
    except FileNotFoundError:
      if not (self.path / tables.METRICS).exists():
        return None
      reason = 'it is missing'
    except (OSError, ValueError) as error:
      reason = str(error)
    raise errors.InputError(
        f'--output_dir={self.path} has a run whose {CONFIG} can\'t be read'
        f' ({reason}), so that it can\'t be resumed; restore it from a backup, name another directory,'
        ' or start over with --overwrite.'
    )

  def _write_json(self, name: str, content: dict[str, Any]) -> None:
    text = json.dumps(_finite(content), indent=2, allow_nan=False) + '\n'
    self._replace(name, lambda file: file.write(text.encode()))

  def _replace(self, name: str, write: Callable[[BinaryIO], Any]) -> None:
    """Writes a file that appears, or takes the place of the old one, when whole."""
    path = self.path / name
    unfinished = path.with_name(f'.{path.name}.unfinished')
    with tables.writing(path):
      try:
        with open(unfinished, 'wb') as file:
          write(file)
          file.flush()
          os.fsync(file.fileno())
        os.replace(unfinished, path)
      finally:
        unfinished.unlink(missing_ok=True)


def read_weights(path: pathlib.Path, like: tuple[Any, Any]) -> Any:
  """Returns what `write_weights` wrote, as a `ModelWeights`.

  Args:
    path: The file.
    like: A structure as the trainable weights, and one as the others.
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
  """Returns the contents of a JSON file of a run; nothing if it is missing, can't be read or is no object."""
  try:
    content = json.loads(path.read_text(encoding='utf-8'))
  except (OSError, ValueError):
    return {}
  return content if isinstance(content, dict) else {}


def ledgers(run_dir: os.PathLike[str]) -> list[pathlib.Path]:
  """The privacy ledgers of a run's directory: of runs that were overwritten, then its own."""
  own = pathlib.Path(run_dir) / LEDGER
  return [*_former_ledgers(own.parent), *([own] if own.exists() else [])]


def _former_ledgers(run_dir: pathlib.Path) -> list[pathlib.Path]:
  """The ledgers of runs that were overwritten, in their order."""
  paths = run_dir.glob(_FORMER_LEDGERS.format('*'))
  return sorted((path for path in paths if path.suffixes[0][1:].isdigit()), key=_number)


def _number(path: pathlib.Path) -> int:
  return int(path.suffixes[0][1:])


def rounds_charged(run_dir: os.PathLike[str]) -> int:
  """The most rounds that a run's reports count as charged; 0 without any."""
  path = pathlib.Path(run_dir) / tables.METRICS
  found = [row.get('rounds_charged') for row in tables.Table(path).rows()]
  return max([int(c) for c in found if c and c.isdigit()], default=0)


def _finite(content: Any) -> Any:
  """JSON has no infinity (epsilon without noise): it becomes the text 'inf'."""
  if isinstance(content, dict):
    return {name: _finite(value) for name, value in content.items()}
  if isinstance(content, float) and not math.isfinite(content):
    return str(content)
  return content
