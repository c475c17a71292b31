"""Recognizes finished runs, without TensorFlow or data; cleans them and loads their models."""

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
from tasks.models import initializers
from tasks.training import run_directory
from tasks.training import tables

if typing.TYPE_CHECKING:
  import tensorflow_federated as tff


def differing(recorded: dict[str, Any], flags: dict[str, Any]) -> list[str]:
  """Returns the names of flags in which two identities (`settings.identity`) differ."""
  return sorted(name for name in {*recorded, *flags} if recorded.get(name) != flags.get(name))


def summary(path: pathlib.Path, settings: settings_lib.RunSettings) -> dict[str, Any]:
  """Returns summary.json of the finished run in a directory; {} if there is none.

  A run is finished if it has all rounds of these flags, its files are there, and its ledger has the
  rounds that the summary counts. The command resumes any other run, and so names the damaged file.
  """
  config = run_directory.read_json(path / run_directory.CONFIG)
  found = run_directory.read_json(path / run_directory.SUMMARY)
  files = (run_directory.WEIGHTS, tables.METRICS, tables.TIMINGS)
  if (
      not found.get('finished')
      or differing(config.get('flags', {}), settings_lib.identity(settings))
      or not all((path / name).exists() for name in files)
  ):
    return {}
  try:
    record = dict(run_directory.ledgers(path)).get(path / run_directory.LEDGER)
  except ledger_lib.LedgerError:
    return {}
  if 'rounds_charged' in found and (not record or record.rounds_charged != found['rounds_charged']):
    return {}
  return found


def text(settings: settings_lib.RunSettings, place: place_lib.PlaceSettings) -> Optional[str]:
  """Returns the results of the finished run in --output_dir; None if there is none to keep."""
  if place.output_dir is None or place.overwrite:
    return None
  path = pathlib.Path(place.output_dir)
  if not (found := summary(path, settings)):
    return None
  lines = [
      f'This run is already finished: {path}, {settings.rounds} rounds, final accuracy'
      f' {100 * found["final_test_accuracy"]:.2f} %',
  ]
  if 'epsilon' in found:
    lines.append(
        f'  epsilon = {float(found["epsilon"]):.4g} for {found["rounds_charged"]} charged rounds'
        f' ({found["guarantee_status"]})'
    )
  return '\n'.join([*lines, f'  all results are in {path / run_directory.SUMMARY}'])


def clean(path: pathlib.Path) -> None:
  """Removes the large checkpoints of a run that has all rounds and is not in use."""
  failures = errors.InputError, errors.RunError
  with contextlib.suppress(*failures), run_directory.RunDirectory(path) as out:
    found = run_directory.read_json(path / run_directory.SUMMARY)
    if out.config is not None and found.get('finished'):
      shutil.rmtree(path / run_directory.CHECKPOINTS, ignore_errors=True)


def load_model(run_dir: os.PathLike[str]) -> tff.learning.models.FunctionalModel:
  """Returns the model of a finished run; its initial weights are the trained weights.

  Raises:
    InputError: If there is no finished run in the directory.
  """
  from tasks.training import experiment  # pylint: disable=g-import-not-at-top

  path = pathlib.Path(run_dir)
  flags = run_directory.read_json(path / run_directory.CONFIG).get('flags')
  if flags is None or not (path / run_directory.WEIGHTS).exists():
    raise errors.InputError(
        f'{path} has no finished run. Name the --output_dir of one, or let the run finish first.'
    )
  # The flags on which the model depends.
  task = datasets.TASKS[flags['task']]
  own = task.options and task.options(**{
      name: flags[f'{task.name}_{name}'] for name in options.options_of(task.options)
  })
  model = task.build_model(own, initializers.INITIALIZERS[flags['initializer']](0))
  weights = run_directory.read_weights(path / run_directory.WEIGHTS, model.initial_weights)
  return experiment.with_weights(model, weights)
