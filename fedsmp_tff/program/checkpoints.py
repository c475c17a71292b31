"""Checkpoints: the state that a run needs to resume after a crash as if there had been none."""

import asyncio
from collections.abc import Coroutine
import concurrent.futures
import os
import pathlib
import shutil
import time
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from fedsmp_tff import errors

_PREFIX = 'round_'
# What TensorFlow's error on a state of other parts contains.
_OTHER_STRUCTURE = 'same nested structure'
# Without a fixed number of rounds, checkpoints take at most this part of the time.
_SHARE_OF_TIME = 0.05


class ProgramState(NamedTuple):
  """A run between two rounds.

  Attributes:
    run_id: bytes, which run it is.
    rounds_done: int32, rounds that ended and were reported.
    process: The learning process's state.
    ledger: The privacy ledger's state.
    reporters: The reporters' states, in their order.
  """

  run_id: Any
  rounds_done: Any
  process: Any
  ledger: Any
  reporters: Any


class CheckpointError(Exception):
  """A checkpoint can't be written or read; the message names it and the remedy."""


class Checkpoints:
  """The last few states of a run, in a directory, by `tff.program.FileProgramStateManager`.

  A checkpoint is a directory that appears under its name only when it is whole; what a
  killed writer leaves behind has another name and is removed at the next start.
  A checkpoint has nothing of the sampler, and so does not reveal who took part. Keep it to
  yourself all the same: reporters may put into their states what no release has, and the process
  of a simulation has the seed that its noise follows from.
  """

  def __init__(
      self,
      directory: os.PathLike[str],
      run_id: bytes = b'',
      *,
      rounds_per_checkpoint: Optional[int] = None,
      keep: int = 3,
  ):
    """Makes the directory.

    Args:
      directory: A directory for these checkpoints alone.
      run_id: Distinguishes the run from others of the same model.
      rounds_per_checkpoint: None: after each round, or as rarely as keeps them under
        5 % of the time.
      keep: Number of the last checkpoints to keep.

    Raises:
      CheckpointError: If the directory can't be made.
      ValueError: If a number is not positive.
    """
    for name, value in (
        ('rounds_per_checkpoint', rounds_per_checkpoint), ('keep', keep)
    ):
      if value is not None and value < 1:
        raise ValueError(f'`{name}` must be positive. Found {value}.')
    self._directory = pathlib.Path(directory)
    self._run_id = run_id
    self._every = rounds_per_checkpoint
    # A thread, so that what interrupts this one does not interrupt a write, and that
    # this one may have a loop that runs (a notebook's). One for all checkpoints: a new
    # one each time costs memory that does not come back.
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'checkpoints')
    self._runner = asyncio.Runner()
    try:
      self._manager = tff.program.FileProgramStateManager(
          self._directory, _PREFIX, keep_total=keep, keep_first=False
      )
      self._remove_unfinished()
    except (OSError, tf.errors.OpError) as error:
      raise CheckpointError(
          f'{self._directory} can\'t be written ({errors.reason(error)}); give write access to it.'
      ) from None
    self._last_round = None
    self._last_seconds = 0.0
    self._last_time = time.monotonic()

  def __enter__(self) -> 'Checkpoints':
    return self

  def __exit__(self, *unused_error) -> None:
    self.close()

  def close(self) -> None:
    """Ends the thread that writes."""
    self._thread.submit(self._runner.close).result()
    self._thread.shutdown()

  def due(self, rounds_done: int) -> bool:
    """Whether the state after `rounds_done` rounds is to be saved."""
    if self._last_round is None:
      return True
    if self._every is not None:
      return rounds_done - self._last_round >= self._every
    since = time.monotonic() - self._last_time
    return self._last_seconds <= _SHARE_OF_TIME * since

  def save(self, state: ProgramState) -> None:
    """Saves a state, unless its round's is saved already; it is on disk on return.

    Args:
      state: Its `run_id` is set here.

    Raises:
      CheckpointError: If it can't be written. Those before it are intact.
    """
    version = int(state.rounds_done)
    if version == self._last_round:
      return
    start = time.monotonic()
    try:
      try:
        self._run(
            self._manager.save(state._replace(run_id=self._run_id), version)
        )
      except tff.program.ProgramStateExistsError:
        # An interrupt left `save` before the thread had finished; it has by now.
        pass
      _sync(self._path(version))
    except (OSError, tf.errors.OpError) as error:
      self._remove_unfinished()
      raise CheckpointError(
          f'The checkpoint {self._path(version)} can\'t be written'
          f' ({errors.reason(error)}); make room or give access there.'
          + (
              f' That of round {self._last_round} is intact.'
              if self._last_round is not None
              else ''
          )
      ) from None
    self._last_round = version
    self._last_time = time.monotonic()
    self._last_seconds = self._last_time - start

  def empty(self) -> bool:
    """Whether there is no checkpoint."""
    return not self._run(self._manager.get_versions())

  def latest(self, like: ProgramState) -> Optional[ProgramState]:
    """The last state that was saved; None if there is none.

    Args:
      like: A state of the structure, types and shapes that it must have.

    Raises:
      CheckpointError: If it is damaged, or not this run's.
    """
    versions = self._run(self._manager.get_versions())
    if not versions:
      return None
    version = versions[-1]
    try:
      state = self._run(self._manager.load(version, like))
    # TensorFlow raises many kinds of errors on damaged files.
    except Exception as error:  # pylint: disable=broad-exception-caught
      if _OTHER_STRUCTURE in str(error):
        raise CheckpointError(
            f'The checkpoint {self._path(version)} has other parts than a state of this run:'
            ' an earlier version of fedsmp_tff, or another model or algorithm, wrote it. Resume'
            ' it with that version, or start over without it.'
        ) from None
      raise self._unusable(versions, f'can\'t be read ({errors.reason(error)})') from None
    found, expected = _shapes(state), _shapes(like)
    if found != expected:
      raise self._unusable(
          versions,
          'is of another model or algorithm'
          f' ({_difference(found, expected)})',
      )
    if state.run_id != self._run_id or state.rounds_done != version:
      raise self._unusable(versions, 'is of another run or round')
    self._last_round = version
    return state

  def _unusable(self, versions: list[int], what: str) -> CheckpointError:
    remedy = (
        f'remove it to resume from round {versions[-2]}'
        if len(versions) > 1
        else 'restore it from a backup, or start over without it'
    )
    return CheckpointError(
        f'The checkpoint {self._path(versions[-1])} {what}; {remedy}.'
    )

  def _path(self, version: int) -> pathlib.Path:
    return self._directory / f'{_PREFIX}{version}'

  def _run(self, work: Coroutine) -> Any:
    return self._thread.submit(self._runner.run, work).result()

  def _remove_unfinished(self) -> None:
    # The manager writes to `round_7_temp1234` and renames it.
    for path in self._directory.glob(f'{_PREFIX}*_temp*'):
      shutil.rmtree(path, ignore_errors=True)


def _sync(directory: pathlib.Path) -> None:
  """Writes the files of a directory from the operating system's buffers to the disk."""
  paths = [directory.parent, directory, *directory.rglob('*')]
  for path in paths:
    descriptor = os.open(path, os.O_RDONLY)
    try:
      os.fsync(descriptor)
    finally:
      os.close(descriptor)


def _shapes(state: ProgramState) -> dict[str, tuple]:
  return {
      '/'.join(map(str, path)): (str(np.asarray(leaf).dtype), np.shape(leaf))
      for path, leaf in tree.flatten_with_path(state)
      if not isinstance(leaf, bytes)
  }


def _difference(found: dict[str, tuple], expected: dict[str, tuple]) -> str:
  name = next(
      n for n in [*expected, *found] if found.get(n) != expected.get(n)
  )

  def text(shapes):
    return f'{shapes[name][0]}{list(shapes[name][1])}' if name in shapes else 'nothing'

  return f'{name} is {text(found)}, not {text(expected)}'

