"""Loads the model that a run has trained."""

import os
import pathlib

import tensorflow_federated as tff

from tasks import datasets
from tasks import errors
from tasks.cli import options
from tasks.cli import settings as settings_lib
from tasks.training import builders
from tasks.training import experiment as experiment_lib
from tasks.training import run_directory
from tasks.training import seeds as seeds_lib


def load_model(run_dir: os.PathLike[str]) -> tff.learning.models.FunctionalModel:
  """Returns the model of a finished run, whose initial weights are the trained ones.

  Raises:
    InputError: If there is no finished run in the directory.
  """
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
  model = builders.model(settings, seeds_lib.make(0, None))
  weights = run_directory.read_weights(path / run_directory.WEIGHTS, model.initial_weights)
  return experiment_lib.with_weights(model, weights)
