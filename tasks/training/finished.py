"""Finished runs: recognizes them, without TensorFlow or data; removes checkpoints; loads the model."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pathlib
import shutil
import typing
from typing import Any, Optional

from fedsmp_tff.privacy import ledger as ledger_lib
from tasks import datasets
from tasks import errors
from tasks.cli import options
from tasks.cli import place as place_lib
from tasks.cli import settings as settings_lib
from tasks.training import resuming
from tasks.training import run_directory
from tasks.training import tables

if typing.TYPE_CHECKING:
  import tensorflow_federated as tff


def text(
    settings: settings_lib.RunSettings, output: place_lib.OutputSettings
) -> Optional[str]:
  """Returns the results of the finished run in --output_dir; None if no such run is there, whole.

  Args:
    settings: What the command asks for.
    output: Its output.

  Raises:
    InputError: If the run that is there has other flags.
  """
  if output.output_dir is None or output.overwrite:
    return None
  path = pathlib.Path(output.output_dir)
  config, summary = (
      run_directory.read_json(path / name) for name in (run_directory.CONFIG, run_directory.SUMMARY)
  )
  if summary.get('rounds') != settings.rounds or 'flags' not in config:
    return None
  resuming.check_identity(path, config, settings_lib.identity(settings))
  # A run that resumes reports what is missing, damaged or changed.
  if not is_whole(path, settings.rounds) or not _ledger_agrees(path, summary):
    return None
  lines = [
      f'This run is already finished: {path}, {settings.rounds} rounds, final accuracy'
      f' {100 * summary["final_test_accuracy"]:.2f} %',
  ]
  if 'epsilon' in summary:
    lines.append(
        f'  epsilon = {float(summary["epsilon"]):.4g} by {summary["rounds_charged"]} rounds'
        f' ({summary["guarantee_status"]})'
    )
  return '\n'.join([*lines, f'  the rest is in {path / run_directory.SUMMARY}'])


def cleaned_mark(path: pathlib.Path) -> pathlib.Path:
  """The file that marks a finished run whose checkpoints were removed on purpose."""
  return path / run_directory.CHECKPOINTS / 'cleaned'


def is_cleaned(path: pathlib.Path) -> bool:
  """Whether the checkpoints of the run in a directory were removed on purpose."""
  return cleaned_mark(path).exists()


def clean(path: pathlib.Path) -> bool:
  """Removes the checkpoints, most of its size, of a finished run that is whole; whether it is."""
  checkpoints = path / run_directory.CHECKPOINTS
  rounds = run_directory.read_json(path / run_directory.CONFIG).get('rounds')
  with _locked(path) as locked:
    # Behind the lock, since a process may have begun there; and by all of its files.
    if not locked or is_cleaned(path) or rounds is None or not is_whole(path, rounds):
      return False
    # First the mark: without it, a run whose checkpoints are missing is damaged.
    cleaned_mark(path).touch()
    for part in checkpoints.iterdir():
      if part != cleaned_mark(path):
        shutil.rmtree(part) if part.is_dir() else part.unlink()
  return True


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[bool]:
  """Keeps processes from a run's directory; whether that was possible."""
  try:
    with open(path / run_directory.LOCK, 'ab') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      yield True
      return
  except BlockingIOError:
    pass
  yield False


def is_whole(path: pathlib.Path, rounds: int) -> bool:
  """Whether all files are there, and unchanged since the summary, which is the last of them."""
  checkpoints = path / run_directory.CHECKPOINTS
  cleaned = is_cleaned(path)
  parts = [
      path / run_directory.CONFIG, path / run_directory.WEIGHTS, checkpoints,
      *tables.Tables(path).paths(),
      *([] if cleaned else checkpoints.rglob('*')),
  ]
  if not (cleaned or (checkpoints / f'round_{rounds}').exists()):
    return False
  if not all(part.exists() for part in parts):
    return False
  if cleaned:
    return True  # Nothing is left to resume from: a copy, whose times are others, is finished too.
  end = (path / run_directory.SUMMARY).stat().st_mtime_ns
  return all(part.stat().st_mtime_ns <= end for part in parts)


def _ledger_agrees(path: pathlib.Path, summary: dict[str, Any]) -> bool:
  """Whether the ledger has the rounds that the summary counts as charged."""
  if 'rounds_charged' not in summary:
    return True
  try:
    record = ledger_lib.read(path / run_directory.LEDGER)
  except (OSError, ledger_lib.LedgerError):
    return False
  unchanged = (path / run_directory.LEDGER).stat().st_mtime_ns <= (
      path / run_directory.SUMMARY
  ).stat().st_mtime_ns
  return unchanged and record.rounds_charged == summary['rounds_charged']


def load_model(run_dir: os.PathLike[str]) -> tff.learning.models.FunctionalModel:
  """Returns the model of a finished run, whose initial weights are the trained ones.

  Raises:
    InputError: If there is no finished run in the directory.
  """
  # pylint: disable=g-import-not-at-top
  from tasks.training import builders
  from tasks.training import experiment

  path = pathlib.Path(run_dir)
  flags = run_directory.read_json(path / run_directory.CONFIG).get('flags')
  if flags is None or not (path / run_directory.WEIGHTS).exists():
    raise errors.InputError(
        f'{path} has no finished run; name the --output_dir of one, or let it end first.'
    )
  # The flags that shape a model.
  task = datasets.TASKS[flags['task']]
  own = options.options_of(task.options) if task.options is not None else ()
  names = ['task', 'initializer', *(f'{task.name}_{name}' for name in own)]
  settings = settings_lib.parse([options.flag_of(name, flags[name]) for name in names])[0]
  model = builders.model(settings, builders.make_seeds(0, None))
  weights = run_directory.read_weights(path / run_directory.WEIGHTS, model.initial_weights)
  return experiment.with_weights(model, weights)
