"""One process of a run: from its settings to the end of its rounds, and what it prints.

`tasks.run` imports it once it knows that the flags are right: TensorFlow takes seconds to import.
"""

import contextlib
import importlib
import os
import sys
import time
from typing import Any, Optional

import tensorflow_federated as tff

from fedsmp_tff import runtime
from fedsmp_tff.privacy import budget as budget_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import checkpoints as checkpoints_lib
from tasks import datasets
from tasks import errors
from tasks.config import runtime as runtime_lib
from tasks.config import settings as settings_lib
from tasks.models import whitening
from tasks.training import experiment as experiment_lib
from tasks.training import interruption as interruption_lib
from tasks.training import plan
from tasks.training import public_model
from tasks.training import resuming
from tasks.training import run_directory
from tasks.training import seeds as seeds_lib
from tasks.training import train

# Where runs are by default.
_RUNS = 'runs'

# What ends a run with a sentence and exit status 1, or their attribute `status`.
FAILURES = (
    errors.RunError, checkpoints_lib.CheckpointError, ledger_lib.LedgerError,
    budget_lib.BudgetSpentError, runtime.WorkersLostError, interruption_lib.Interrupted,
)


def run(
    settings: settings_lib.RunSettings,
    place: runtime_lib.RuntimeSettings,
    output: settings_lib.OutputSettings,
) -> int:
  """Runs the rounds, and prints the plan before them and what they came to.

  Args:
    settings: What to run.
    place: Where.
    output: Where its files are, and how it ends early; a run that is there is resumed.

  Returns:
    The exit status.

  Raises:
    InputError: If something does not fit the data, or the run in the directory.
  """
  interruption = interruption_lib.Interruption()
  runtime_lib.prepare(seeded=settings.seed is not None)
  with interruption.handled(), runtime_lib.context(place):
    return _run(settings, place, output, interruption)


def _run(
    settings: settings_lib.RunSettings,
    place: runtime_lib.RuntimeSettings,
    output: settings_lib.OutputSettings,
    interruption: interruption_lib.Interruption,
) -> int:
  manager = _release_manager(output.release_manager)
  path = output.output_dir
  if path is None:
    path = _default_output_dir(settings)
  with run_directory.RunDirectory(path, output.overwrite) as out:
    if out.config is not None:
      resuming.check_identity(out.path, out.config, settings_lib.identity(settings))
    experiment = experiment_lib.Experiment.build(
        settings, seeds_lib.make(settings.seed, out.config)
    )
    resumed = out.config is not None
    clients = _name_of_clients(
        settings.task, out.config if resumed else experiment.data.as_dict()
    )
    if settings.epsilon_budget is not None:
      out.check_clients(clients)
    if resumed:
      resuming.check_data(out.path, out.checkpoints, out.config, experiment.data)
    for warning in plan.warnings(experiment):
      print(f'tasks.run: {warning}', file=sys.stderr)
    print(plan.text(experiment), flush=True)
    if output.dry_run:
      return 0
    interruption.next_step = f'; the same command with --output_dir={out.path} resumes it.'
    print(f'\noutput: {out.path}\n', flush=True)
    if not resumed:
      out.begin(resuming.config(experiment, place))
    for change in resuming.changes(out.config, resuming.surroundings(place)):
      print(f'tasks.run: {change}; last bits may differ.', file=sys.stderr)
    run_id = out.config['run_id']
    with checkpoints_lib.Checkpoints(out.checkpoints, run_id.encode()) as checkpoints:
      if resumed and checkpoints.empty():
        out.tables.resume_without_checkpoint(out.checkpoints)
      resuming.keep_data_digest(out.checkpoints, experiment.data)
      if checkpoints.empty():
        experiment = _with_warm_start(experiment)
      ledger = contextlib.nullcontext()
      if experiment.private:
        ledger = out.ledger(
            experiment.spec, run_id, experiment.seeds.process, clients,
            _name_of_initial_weights(experiment), began=not checkpoints.empty(),
            epsilon_budget=settings.epsilon_budget,
        )
      with ledger as ledger:
        stopped_by = train.train(
            experiment, out, checkpoints, ledger, interruption, manager
        )
  if stopped_by is not None:
    raise stopped_by
  return 0


def _name_of_clients(task: str, config: dict[str, Any]) -> str:
  """The name by which ledgers of the same clients, and of no others, know their data."""
  # A task of one's own may have none.
  digest = config.get('split_digest')
  return task if digest is None else f'{task} divided as {digest}'


def _name_of_initial_weights(experiment: experiment_lib.Experiment) -> str:
  """Describes the initialization, for the ledger."""
  if experiment.settings.warm_start is None:
    return 'random'
  return f'pre-trained on public examples, digest {experiment.data.public_digest()}'


def _with_warm_start(experiment: experiment_lib.Experiment) -> experiment_lib.Experiment:
  """Returns the run with the initial weights that --warm_start asks for."""
  if experiment.settings.warm_start is None:
    return experiment
  schedule = datasets.TASKS[experiment.settings.task].pretraining

  def report(epoch, loss):
    print(
        f'pre-training: epoch {epoch}/{schedule.epochs}, loss {loss:.4f}',
        file=sys.stderr, flush=True,
    )

  # With --whiten too, pre-trained weights are those of the task's own model.
  weights = public_model.train(
      experiment.plain_model, schedule, experiment.data.public, experiment.seeds.partition, report
  )
  return _whitened(experiment, weights)


def _whitened(
    experiment: experiment_lib.Experiment, weights: tff.learning.models.ModelWeights
) -> experiment_lib.Experiment:
  """Returns the run with initial weights of the task's own model, in the coordinates of --whiten.

  Raises:
    InputError: If the model or the public examples do not fit --whiten.
  """
  if experiment.settings.whiten is None:
    return experiment.with_initial_weights(weights)
  is_scored = datasets.TASKS[experiment.settings.task].is_scored
  try:
    fitted = whitening.fitted(
        experiment.plain_model, weights, experiment.data.public, is_scored
    )
  except ValueError as error:
    raise errors.InputError(f'--whiten={experiment.settings.whiten}: {error}') from None
  return experiment.with_initial_weights(fitted)


def _release_manager(name: Optional[str]) -> Optional[tff.program.ReleaseManager]:
  """The release manager that --release_manager names; None if it names none."""
  if name is None:
    return None
  module, _, function = name.partition(':')
  try:
    make = getattr(importlib.import_module(module), function)
  except (ImportError, AttributeError, ValueError) as error:
    raise errors.InputError(
        f'--release_manager={name} can\'t be imported ({error}); name MODULE:FUNCTION, with MODULE'
        ' on the Python path.'
    ) from None
  manager = make()
  if not isinstance(manager, tff.program.ReleaseManager):
    raise errors.InputError(
        f'--release_manager={name} returned {type(manager).__name__}, which is no'
        ' tff.program.ReleaseManager; return one.'
    )
  return manager


def _default_output_dir(settings: settings_lib.RunSettings) -> str:
  now = time.strftime('%Y%m%d-%H%M%S')
  # Batch jobs that start in the same second keep apart.
  return f'{_RUNS}/{settings.task}-{settings.algorithm}-{now}-{os.getpid()}'
