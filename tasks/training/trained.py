"""Loads the model that a run has trained."""

import os
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import errors
from tasks.config import options
from tasks.config import settings as settings_lib
from tasks.config import task_flags
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
  names = ['task', 'initializer', *task_flags.names(flags['task'])]
  shaping = [options.flag_of(n, flags[n]) for n in names if flags.get(n) is not None]
  settings = settings_lib.parse(shaping)[0]
  task_flags.use(settings.task_flags)
  model = builders.model(settings, seeds_lib.make(0, None))
  with np.load(path / run_directory.WEIGHTS) as arrays:
    weights = [
        tf.nest.pack_sequence_as(
            structure, [arrays[f'{kind}_{i}'] for i in range(len(tf.nest.flatten(structure)))]
        )
        for kind, structure in zip(('trainable', 'non_trainable'), model.initial_weights)
    ]
  return experiment_lib.with_weights(model, tff.learning.models.ModelWeights(*weights))
