"""Recognizes finished runs, without TensorFlow or data; cleans them and loads their models."""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import errno
import functools
import os
import pathlib
import shutil
import typing
from typing import Any, Optional

from fedsmp_tff import errors as library_errors
from fedsmp_tff.privacy import ledger as ledger_lib
from tasks import datasets
from tasks import errors
from tasks import methods
from tasks.cli import command
from tasks.cli import options
from tasks.datasets import task as task_lib
from tasks.models import initializers
from tasks.training import run_directory
from tasks.training import runtime_flags as runtime_flags_lib
from tasks.training import settings as settings_lib
from tasks.training import tables

if typing.TYPE_CHECKING:
  import tensorflow_federated as tff


# Flags without an effect in a run without rounds.
OF_ROUNDS = tuple(
    name for name, option in options.options_of(settings_lib.RunSettings).items()
    if option.group == settings_lib.TRAINING
)
_SUMMARY_KINDS = {'finished': (bool,), 'final_test_accuracy': (float, int)}
# Of runs with an evaluation of the initial weights, on the same examples.
_GAIN_KINDS = dict.fromkeys(('initial_test_accuracy', 'gain'), (float, int))
# Epsilon without noise is 'inf'.
_PRIVATE_KINDS = {
    'epsilon': (float, int, str), 'rounds_charged': (int,), 'guarantee_status': (str,),
}


def find_differences(recorded: dict[str, Any], flags: dict[str, Any]) -> list[str]:
  """Returns the names of flags in which a recorded identity and another differ.

  Args:
    recorded: `settings.identity` of the run in a directory, perhaps of an earlier version.
    flags: `settings.identity` of this version.
  """
  names = {*recorded, *flags}.difference(() if flags['rounds'] else OF_ROUNDS)
  return sorted(name for name in names if recorded_flag(recorded, name) != flags.get(name))


def recorded_flag(recorded: Mapping[str, Any], name: str) -> Any:
  """Returns a recorded flag, or the default of a flag that the recording version did not have.

  A new flag's default is what earlier versions did.
  """
  if name in recorded or name not in _options():
    return recorded.get(name)
  return _options()[name].default


def flag_text(name: str, value: Any) -> str:
  """Returns a flag's value in `settings.identity`, as typed; 'not set' if it has no such value."""
  if value is None and (option := _options().get(name)):
    value = option.off
  if value is None:
    return 'not set'
  return ','.join(map(str, value)) if isinstance(value, list) else str(value)


@functools.cache
def _options() -> dict[str, options.Option]:
  tables = [('', settings_lib.RunSettings)]
  tables += [('', method.options) for method in methods.METHODS.values()]
  tables += [(settings_lib.task_prefix(task), task.options) for task in datasets.TASKS.values()]
  return {
      prefix + name: option
      for prefix, table in tables if table is not None
      for name, option in options.options_of(table).items()
  }


def summary(path: pathlib.Path, settings: settings_lib.RunSettings) -> dict[str, Any]:
  """Returns summary.json of the finished run in a directory; {} if there is none.

  A run is finished if it has all rounds of these flags, its files are there, and its ledger has the
  rounds that the summary counts. The command resumes any other run, and so names the damaged file.
  """
  found = run_directory.read_json(path / run_directory.SUMMARY)
  files = (run_directory.WEIGHTS, tables.METRICS, tables.TIMINGS)
  try:
    config = run_directory.read_config(path)
    library_errors.check_fields(found, _SUMMARY_KINDS)
    if 'gain' in found:
      library_errors.check_fields(found, _GAIN_KINDS)
    if 'choice_rounds' in found:  # Earlier versions did not write it.
      library_errors.check_fields(found, {'choice_rounds': (int,)})
    if 'epsilon' in found:
      library_errors.check_fields(found, _PRIVATE_KINDS)
      float(found['epsilon'])
      found['guarantee_status'] = library_errors.printable(found['guarantee_status'])
  except (OSError, ValueError):
    return {}
  if (
      not found['finished']
      or find_differences(config['flags'], settings_lib.identity(settings))
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


def accuracy_text(found: dict[str, Any], settings: settings_lib.RunSettings) -> str:
  """Returns the accuracy in a summary, and the gain if it is known, with what it is a gain over."""
  accuracy = f'{100 * found["final_test_accuracy"]:.2f} %'
  if found.get('test_outside_guarantee'):
    accuracy += ' (OUTSIDE the guarantee)'
  if 'gain' not in found:
    return accuracy
  baseline = 'random weights'
  if settings.warm_start != settings_lib.NONE:
    baseline = 'pre-training alone'
  return (
      f'{100 * found["initial_test_accuracy"]:.2f} -> {accuracy}: {100 * found["gain"]:+.2f} points'
      f' over {baseline}'
  )


def text(
    settings: settings_lib.RunSettings, runtime_flags: runtime_flags_lib.RuntimeSettings
) -> Optional[str]:
  """Returns the results of the finished run in --output_dir; None if there is none to keep."""
  if runtime_flags.output_dir is None or runtime_flags.overwrite:
    return None
  path = pathlib.Path(runtime_flags.output_dir)
  if not (found := summary(path, settings)):
    return None
  lines = [
      f'This run is already finished: {path}, {settings.rounds} rounds',
      f'  accuracy {accuracy_text(found, settings)}',
  ]
  if 'epsilon' in found:
    rounds = f'{found["rounds_charged"]} charged rounds'
    if num := found.get('choice_rounds'):
      rounds += f' and {num} of the choice'
    epsilon = f'{float(found["epsilon"]):.4g}'
    lines.append(f'  epsilon = {epsilon} for {rounds} ({found["guarantee_status"]})')
  return '\n'.join([*lines, f'  all results are in {path / run_directory.SUMMARY}'])


def clean(path: pathlib.Path) -> None:
  """Removes the large checkpoints of a run that has all rounds and is not in use."""
  with contextlib.suppress(library_errors.Error), run_directory.RunDirectory(path) as out:
    found = run_directory.read_json(path / run_directory.SUMMARY)
    if out.config is not None and found.get('finished'):
      shutil.rmtree(path / run_directory.CHECKPOINTS, ignore_errors=True)


def load_model(
    run_dir: os.PathLike[str], task: Optional[task_lib.Task] = None
) -> tff.learning.models.FunctionalModel:
  """Returns the model of a finished run; its initial weights are the trained weights.

  The directory may be somebody else's: it decides neither what is imported nor what is run.

  Args:
    run_dir: The run's --output_dir.
    task: The run's task, if it is not built in: the TASK of the module that --task named.

  Raises:
    InputError: If there is no finished run in the directory, or it is not of the task.
  """
  from tasks.models import weights as weights_lib  # pylint: disable=g-import-not-at-top
  from tasks.training import experiment  # pylint: disable=g-import-not-at-top

  path = pathlib.Path(run_dir)
  try:
    config = run_directory.read_config(path)
    if not (path / run_directory.WEIGHTS).exists():
      raise FileNotFoundError(errno.ENOENT, f'it has no {run_directory.WEIGHTS}')
  except (OSError, ValueError) as error:
    raise errors.InputError(
        f'{path} has no finished run ({library_errors.reason(error)}). Name the --output_dir of one,'
        ' or let the run finish first.'
    ) from None
  flags = config['flags']
  if task is None and (task := datasets.TASKS.get(config['task'])) is None:
    raise errors.InputError(
        f'{path} is a run of --task={config["task"]}, which is not built in, and a run\'s'
        ' directory does not decide what is imported. Pass the TASK of that module as `task`.'
    )
  # The flags on which the model depends.
  own = task.options and _own_options(task, flags)
  if (initializer := str(flags.get('initializer'))) not in initializers.INITIALIZERS:
    raise errors.InputError(
        f'{path} has --initializer={initializer}, which this version does not have. Load it with'
        ' the version that trained it.'
    )
  model = task.build_model(own, initializers.INITIALIZERS[initializer](0))
  remedy = 'Restore it from a backup, or pass the `task` that it was trained with.'
  weights = weights_lib.read(path / run_directory.WEIGHTS, model.initial_weights, remedy)
  return experiment.with_weights(model, weights)


def _own_options(task: task_lib.Task, flags: dict[str, Any]) -> Any:
  """Returns a task's options of a run, checked as on a command line."""
  flag_values, prefix = options.new_flags(), settings_lib.task_prefix(task)
  options.define(flag_values, task.options, prefix)
  arguments = [
      # Flags that have no effect are recorded too, at their defaults.
      options.flag_of(name, flags[name]) for name in flag_values
      if flags.get(name) not in (None, flag_values[name].default)
  ]
  command.read(flag_values, arguments, 'python -m tasks.run')
  return options.make(task.options, flag_values, prefix)
