"""Loads a run's model with its trained weights."""

import os
import pathlib
from typing import NamedTuple
import zipfile

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import datasets
from tasks import errors
from tasks.config import settings as settings_lib
from tasks.config import task_flags
from tasks.training import builders
from tasks.training import experiment as experiment_lib
from tasks.training import run_directory
from tasks.training import seeds as seeds_lib


class SavedModel(NamedTuple):
  """A run's model.

  Attributes:
    settings: The run's settings.
    model: The model, whose initial weights are the trained ones.
  """

  settings: settings_lib.RunSettings
  model: tff.learning.models.FunctionalModel

  def named_weights(self) -> dict[str, np.ndarray]:
    """The trained weights by name, such as 'conv_1/kernel', in the order of the model."""
    flat = [np.asarray(array) for array in tf.nest.flatten(self.model.initial_weights)]
    names_of = datasets.TASKS[self.settings.task].weight_names
    names = list(names_of()) if names_of is not None else []
    names += [f'weight_{position}' for position in range(len(names), len(flat))]
    return dict(zip(names, flat))


class Exported(tf.Module):
  """A model as TensorFlow alone can save, load and call it.

  Attributes:
    weights: The variables, named.
  """

  def __init__(self, saved: SavedModel):
    """Takes a run's model; its inputs may have any number of examples."""
    super().__init__()
    model = saved.model
    self.weights = [
        tf.Variable(value, name=name) for name, value in saved.named_weights().items()
    ]

    @tf.function(input_signature=[model.input_spec[0]])
    def logits(x):
      weights = tf.nest.pack_sequence_as(model.initial_weights, self.weights)
      return {'logits': model.predict_on_batch(weights, x, training=False)}

    self.logits = logits

  def save(self, path: os.PathLike[str]) -> None:
    """Writes a SavedModel, whose default signature maps inputs to `logits`."""
    # The LSTM's own gradient is for training.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(self, str(path), signatures=self.logits, options=options)


def load(run_dir: os.PathLike[str], weights: str = run_directory.WEIGHTS) -> SavedModel:
  """Returns the model that a run has trained.

  `model.initial_weights` are the trained weights, in the layout of the `FunctionalModel`:
  `model.predict_on_batch(model.initial_weights, x, training=False)` are its logits.

  Args:
    run_dir: The run's directory.
    weights: The file of weights in it.

  Raises:
    InputError: If there is no such run, or its weights are not those of its model.
  """
  path = pathlib.Path(run_dir)
  flags = run_directory.read_json(path / run_directory.CONFIG).get('flags')
  if flags is None:
    raise errors.InputError(
        f'{path} has no run with a {run_directory.CONFIG}; name the --output_dir of a run.'
    )
  settings = _settings(flags)
  task_flags.use(settings.task_flags)
  model = builders.model(settings, seeds_lib.make(0, None))
  if not (path / weights).exists():
    raise errors.InputError(f'{path} has no {weights}; let the run end first.')
  return SavedModel(
      settings, experiment_lib.with_weights(model, _read(path / weights, model))
  )


def _settings(flags: dict[str, object]) -> settings_lib.RunSettings:
  """The settings of a run, as far as its model needs them."""
  task = flags['task']
  arguments = [f'--task={task}', f'--initializer={flags.get("initializer", "keras")}']
  for name in task_flags.names(task):
    if (value := flags.get(name)) is not None:
      text = ','.join(map(str, value)) if isinstance(value, list) else value
      arguments.append(f'--{name}={text}')
  return settings_lib.parse(arguments)[0]


def _read(
    path: pathlib.Path, model: tff.learning.models.FunctionalModel
) -> tff.learning.models.ModelWeights:
  """Returns the weights in a run's weights.npz.

  Raises:
    InputError: If the file can't be read, or has weights of other shapes.
  """
  try:
    with np.load(path) as file:
      arrays = dict(file)
  # TypeError: a file of one array.
  except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
    reason = getattr(error, 'strerror', None) or error
    raise errors.InputError(
        f'{path} can\'t be read ({reason}); restore it, or run the run again.'
    ) from None
  parts = []
  for kind, expected in zip(('trainable', 'non_trainable'), model.initial_weights):
    flat = tf.nest.flatten(expected)
    own = [arrays.get(f'{kind}_{position}') for position in range(len(flat))]
    if not all(a is not None and a.shape == np.shape(weight) for a, weight in zip(own, flat)):
      raise errors.InputError(
          f'{path} lacks weights of this model\'s shapes; name a run with the same model.'
      )
    parts.append(tf.nest.pack_sequence_as(expected, own))
  return tff.learning.models.ModelWeights(*parts)
