"""Checkpoints: the state from which a run resumes as if it had not stopped."""

import io
import os
import pathlib
import re
import time
from typing import Any, NamedTuple, Optional
import urllib.parse

import numpy as np
import tree

from fedsmp_tff import errors
from fedsmp_tff.program import files

_NAME = re.compile(r'round_([0-9]+)\.npz')
_RUN_ID = 'run_id'
_KEEP = 3
_MAX_FRACTION_OF_TIME = 0.05  # For checkpoints.


class ProgramState(NamedTuple):
  """A run between two rounds, in arrays and NumPy scalars.

  Attributes:
    rounds_done: int32, number of finished and reported rounds.
    process: The learning process's state.
    ledger: The privacy ledger's state.
    reporters: The reporters' states, by name.
  """

  rounds_done: Any
  process: Any
  ledger: Any
  reporters: Any


class CheckpointError(errors.Error):
  """A checkpoint can't be written or read; the message names it and the remedy."""


class Checkpoints:
  """The last three states of a run, each a file of arrays (`round_7.npz`) in a directory.

  A file appears under its name only when it is complete and on disk, and only its owner can read
  it. A checkpoint has no sampler state, and so does not reveal who took part. Nevertheless, do not
  publish it: states of reporters may contain more than the releases, and a simulation's process has
  the seed of its noise.
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
    self._run_id = np.frombuffer(run_id, np.uint8)
    try:
      self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
      self._directory.chmod(0o700)  # Also of a run that another version began.
    except OSError as error:
      raise CheckpointError(
          f'{self._directory} can\'t be written ({errors.reason(error)}). Give write access to it.'
      ) from None
    self._last_round = None
    self._last_seconds = 0.0
    self._last_time = time.monotonic()

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
    rounds_done = int(state.rounds_done)
    if rounds_done == self._last_round:
      return
    start = time.monotonic()
    path = self._directory / f'round_{rounds_done}.npz'
    arrays = {_RUN_ID: self._run_id, **_arrays(state)}
    for name, array in arrays.items():
      if array.dtype.kind in 'OSU':  # Objects would need a pickle; texts have no fixed size.
        raise CheckpointError(
            f'The checkpoint {path} can\'t be written: {name} of the state is {array.dtype}, neither'
            ' numbers nor booleans. Encode it as an array of numbers.'
        )
    try:
      self._write(path, arrays)
    except OSError as error:
      raise CheckpointError(
          f'The checkpoint {path} can\'t be written ({errors.reason(error)}). Make room or give'
          ' access there. Earlier checkpoints are intact.'
      ) from None
    self._last_round = rounds_done
    self._last_time = time.monotonic()
    self._last_seconds = self._last_time - start

  def rounds_done(self) -> Optional[int]:
    """Returns the number of rounds of the last checkpoint; None if there is none."""
    return max(self._saved(), default=None)

  def latest(self, like: ProgramState) -> Optional[ProgramState]:
    """Returns the last saved state; None if there is none.

    Args:
      like: A state of the required structure, types and shapes.

    Raises:
      CheckpointError: If it is damaged, or of another run.
    """
    saved = self._saved()
    if not saved:
      return None
    *earlier, rounds_done = sorted(saved)
    path, expected = saved[rounds_done], _arrays(like)

    def unusable(reason):
      remedy = 'Restore it from a backup, or start over without it'
      if earlier:
        remedy = f'Remove it to resume from round {earlier[-1]}'
      return CheckpointError(f'The checkpoint {path} {reason}. {remedy}.')

    try:
      with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    # A damaged file raises many kinds of errors.
    except Exception as error:  # pylint: disable=broad-exception-caught
      raise unusable(f'can\'t be read ({errors.reason(error)})') from None
    run_id = arrays.pop(_RUN_ID, None)
    if arrays.keys() != expected.keys():
      raise CheckpointError(
          f'The checkpoint {path} has other parts than a state of this run: an earlier version of'
          ' fedsmp_tff, or another model or algorithm, wrote it. Resume it with that version, or'
          ' start over without it.'
      )
    for name, array in expected.items():
      # NumPy does not know bfloat16, and reads its bytes without a type.
      if array.dtype.kind == 'V' and arrays[name].dtype == f'V{array.dtype.itemsize}':
        arrays[name] = arrays[name].view(array.dtype)
      wanted = errors.describe_array(array)
      if (actual := errors.describe_array(arrays[name])) != wanted:
        raise unusable(f'is of another model or algorithm ({name} is {actual}, not {wanted})')
    if not np.array_equal(run_id, self._run_id) or arrays['rounds_done'] != rounds_done:
      raise unusable('is of another run or round')
    self._last_round = rounds_done
    # `[()]` makes a scalar of an array without dimensions.
    return tree.unflatten_as(like, [arrays[name][()] for name in expected])

  def _saved(self) -> dict[int, pathlib.Path]:
    """Returns the checkpoints by their number of rounds."""
    names = map(_NAME.fullmatch, os.listdir(self._directory))
    return {int(name[1]): self._directory / name[0] for name in names if name}

  def _write(self, path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes a file that appears when it is on disk, and then removes the oldest."""
    # Not straight into the file: a `ZipFile` complains on stderr when it can't end what it began.
    content = io.BytesIO()
    np.savez(content, **arrays)
    files.replace(path, lambda file: file.write(content.getbuffer()))
    saved = self._saved()
    for rounds_done in sorted(saved)[:-_KEEP]:
      saved[rounds_done].unlink(missing_ok=True)


def _arrays(state: ProgramState) -> dict[str, np.ndarray]:
  """Returns the leaves by their names, such as `process/global_model_weights/trainable/0`."""
  return {
      '/'.join(urllib.parse.quote(str(key), safe='') for key in path): np.asarray(leaf)
      for path, leaf in tree.flatten_with_path(state)
  }
