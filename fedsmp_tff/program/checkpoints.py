"""Checkpoints: the state from which a run resumes as if it had not stopped."""

import asyncio
from collections.abc import Coroutine
import concurrent.futures
import contextlib
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
_KEEP = 3
# Part of TensorFlow's error if the structures of a checkpoint and of the state differ.
_OTHER_STRUCTURE = 'same nested structure'
_MAX_FRACTION_OF_TIME = 0.05  # For checkpoints.


class ProgramState(NamedTuple):
  """A run between two rounds.

  Attributes:
    run_id: bytes, the run's identity.
    rounds_done: int32, number of finished and reported rounds.
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


class Checkpoints(contextlib.AbstractContextManager):
  """The last three states of a run, in a directory, by `tff.program.FileProgramStateManager`.

  A checkpoint is a directory that appears under its name only when it is complete; a killed
  writer's directory has another name and is removed at the next start. A checkpoint has no sampler
  state, and so does not reveal who took part. Nevertheless, do not publish it: states of reporters
  may contain more than the releases, and a simulation's process has the seed of its noise.
  """

  def __init__(self, directory: os.PathLike[str], run_id: bytes = b''):
    """Makes the directory, and closes it to all but its owner.

    Args:
      directory: A directory for these checkpoints alone.
      run_id: Distinguishes the run from others of the same model.

    Raises:
      CheckpointError: If the directory can't be made.
    """
    self._directory = pathlib.Path(directory)
    self._run_id = run_id
    # In a thread, so that an interrupt does not stop a write, and that the caller may run an event
    # loop, as a notebook does. One thread for all checkpoints: each new thread would leak memory.
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'checkpoints')
    self._runner = asyncio.Runner()
    try:
      self._manager = tff.program.FileProgramStateManager(
          self._directory, _PREFIX, keep_total=_KEEP, keep_first=False
      )
      self._directory.chmod(0o700)  # Also of a run that another version began.
      self._remove_unfinished()
    except (OSError, tf.errors.OpError) as error:
      raise CheckpointError(
          f'{self._directory} can\'t be written ({errors.reason(error)}). Give write access to it.'
      ) from None
    self._last_round = None
    self._last_seconds = 0.0
    self._last_time = time.monotonic()

  def __exit__(self, *unused_error) -> None:
    self.close()

  def close(self) -> None:
    """Ends the thread that writes."""
    self._thread.submit(self._runner.close).result()
    self._thread.shutdown()

  def due(self) -> bool:
    """Returns whether to save a state now, such that checkpoints take at most 5 % of the time."""
    if self._last_round is None:
      return True
    seconds = time.monotonic() - self._last_time
    return self._last_seconds <= _MAX_FRACTION_OF_TIME * seconds

  def save(self, state: ProgramState) -> None:
    """Saves a state, with this run's `run_id`, unless its round is saved; it is on disk on return.

    Raises:
      CheckpointError: If it can't be written; earlier checkpoints are intact.
    """
    version = int(state.rounds_done)
    if version == self._last_round:
      return
    start = time.monotonic()
    try:
      # If an interrupt ended an earlier `save`, the thread has finished the write by now.
      with contextlib.suppress(tff.program.ProgramStateExistsError):
        self._run(self._manager.save(state._replace(run_id=self._run_id), version))
      _sync(self._path(version))
    except (OSError, tf.errors.OpError) as error:
      self._remove_unfinished()
      raise CheckpointError(
          f'The checkpoint {self._path(version)} can\'t be written ({errors.reason(error)}). Make'
          ' room or give access there. Earlier checkpoints are intact.'
      ) from None
    self._last_round = version
    self._last_time = time.monotonic()
    self._last_seconds = self._last_time - start

  def empty(self) -> bool:
    """Returns whether there is no checkpoint."""
    return not self._run(self._manager.get_versions())

  def latest(self, like: ProgramState) -> Optional[ProgramState]:
    """Returns the last saved state; None if there is none.

    Args:
      like: A state of the required structure, types and shapes.

    Raises:
      CheckpointError: If it is damaged, or of another run.
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
            f'The checkpoint {self._path(version)} has other parts than a state of this run: an'
            ' earlier version of fedsmp_tff, or another model or algorithm, wrote it. Resume it'
            ' with that version, or start over without it.'
        ) from None
      raise self._unusable(versions, f'can\'t be read ({errors.reason(error)})') from None
    if difference := _difference(_types(state), _types(like)):
      raise self._unusable(versions, f'is of another model or algorithm ({difference})')
    if state.run_id != self._run_id or state.rounds_done != version:
      raise self._unusable(versions, 'is of another run or round')
    self._last_round = version
    return state

  def _unusable(self, versions: list[int], reason: str) -> CheckpointError:
    remedy = 'Restore it from a backup, or start over without it'
    if len(versions) > 1:
      remedy = f'Remove it to resume from round {versions[-2]}'
    return CheckpointError(f'The checkpoint {self._path(versions[-1])} {reason}. {remedy}.')

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
  for path in (directory.parent, directory, *directory.rglob('*')):
    descriptor = os.open(path, os.O_RDONLY)
    try:
      os.fsync(descriptor)
    finally:
      os.close(descriptor)


def _types(state: ProgramState) -> dict[str, str]:
  """Returns the type and shape of each leaf by its name, such as `float32[5]`."""
  return {
      '/'.join(map(str, path)): f'{np.asarray(leaf).dtype}{list(np.shape(leaf))}'
      for path, leaf in tree.flatten_with_path(state)
      if not isinstance(leaf, bytes)
  }


def _difference(actual: dict[str, str], expected: dict[str, str]) -> str:
  """Returns the first difference in words; '' if there is none."""
  for name in (*expected, *actual):
    if actual.get(name) != expected.get(name):
      return f'{name} is {actual.get(name, "nothing")}, not {expected.get(name, "nothing")}'
  return ''
