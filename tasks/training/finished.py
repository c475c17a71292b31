"""Recognizes the run in a directory, without TensorFlow or data; cleans and loads finished runs."""

from __future__ import annotations

import contextlib
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
from tasks.training import run_directory
from tasks.training import tables

if typing.TYPE_CHECKING:
  import tensorflow_federated as tff


def differing(recorded: dict[str, Any], flags: dict[str, Any]) -> list[str]:
  """Returns the names of flags in which two identities (`settings.identity`) differ."""
  return sorted(
      name for name in {*recorded, *flags} if recorded.get(name) != flags.get(name)
  )


def check_flags(
    path: pathlib.Path, config: Optional[dict[str, Any]], settings: settings_lib.RunSettings
) -> None:
  """Raises `InputError` if a run, by its config.json, has other flags than this command."""
  flags = settings_lib.identity(settings)
  identities = (config['flags'] if config else flags), flags
  if names := differing(*identities):
    before, now = (
        ' '.join(
            f'no --{name}' if flags.get(name) is None else options.flag_of(name, flags[name])
            for name in names
        )
        for flags in identities
    )
    raise errors.InputError(
        f'--output_dir={path} has a run with {before}, not {now}; give it the same flags to resume'
        ' it, name another directory, or start over with --overwrite.'
    )


def text(
    settings: settings_lib.RunSettings, output: place_lib.OutputSettings
) -> Optional[str]:
  """Returns the results of the finished run in --output_dir; None if no whole run is there.

  Raises:
    InputError: If the run that is there has other flags.
  """
  if output.output_dir is None or output.overwrite:
    return None
  path = pathlib.Path(output.output_dir)
  config = run_directory.read_json(path / run_directory.CONFIG)
  summary = run_directory.read_json(path / run_directory.SUMMARY)
  if summary.get('rounds') != settings.rounds or 'flags' not in config:
    return None
  check_flags(path, config, settings)
  # The command resumes a damaged run, and so names the damage.
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


def is_whole(path: pathlib.Path, rounds: int) -> bool:
  """Whether all files are there, and unchanged since the summary, which is the last of them."""
  summary = path / run_directory.SUMMARY
  names = [
      run_directory.CONFIG, run_directory.SUMMARY, run_directory.WEIGHTS,
      tables.METRICS, tables.TIMINGS,
  ]
  if 'rounds_charged' in run_directory.read_json(summary):
    names.append(run_directory.LEDGER)
  parts = [path / name for name in names]
  is_cleaned = _cleaned_mark(path).exists()
  if not is_cleaned:
    checkpoints = path / run_directory.CHECKPOINTS
    parts += [checkpoints, checkpoints / f'round_{rounds}', *checkpoints.rglob('*')]
  if not all(part.exists() for part in parts):
    return False
  end = summary.stat().st_mtime_ns
  # Without checkpoints a copy, whose times differ, is finished too.
  return is_cleaned or all(part.stat().st_mtime_ns <= end for part in parts)


def _ledger_agrees(path: pathlib.Path, summary: dict[str, Any]) -> bool:
  """Whether the ledger is undamaged, with the rounds that the summary counts as charged."""
  if 'rounds_charged' not in summary:
    return True
  with contextlib.suppress(OSError, ledger_lib.LedgerError):
    record = ledger_lib.read(path / run_directory.LEDGER)
    return record.rounds_charged == summary['rounds_charged']
  return False


def clean(path: pathlib.Path) -> bool:
  """Removes the checkpoints, most of its size, of a finished run that is whole; whether it is."""
  try:
    out = run_directory.RunDirectory(path)
  except errors.InputError:
    return False
  mark = _cleaned_mark(path)
  with out:
    if out.config is None or mark.exists() or not is_whole(path, out.config['rounds']):
      return False
    # First the mark: without it, a run whose checkpoints are missing is damaged.
    mark.touch()
    for part in mark.parent.iterdir():
      if part != mark:
        shutil.rmtree(part) if part.is_dir() else part.unlink()
  return True


def _cleaned_mark(path: pathlib.Path) -> pathlib.Path:
  """Returns the file that marks a finished run whose checkpoints were removed on purpose."""
  return path / run_directory.CHECKPOINTS / 'cleaned'


def load_model(run_dir: os.PathLike[str]) -> tff.learning.models.FunctionalModel:
  """Returns the model of a finished run; its initial weights are the trained weights.

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
