"""Files of weights that public examples trained (--public_weights_dir): runs that begin alike train once.

The training on public examples takes half a minute on Fashion-MNIST and two on Shakespeare, and the
runs of a sweep that have a seed in common repeat it to the last bit. No client's data is in it.
"""

from collections.abc import Callable
import hashlib
import json
import os
import pathlib
import tempfile
from typing import Optional
import zipfile

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import errors
from tasks.training import experiment as experiment_lib
from tasks.training import public_model
from tasks.training import warm_start

_DESCRIPTION = 'description'


def trained(
    experiment: experiment_lib.Experiment,
    directory: Optional[str],
    train: Callable[[], public_model.PublicModel],
) -> public_model.PublicModel:
  """Returns the model of the public examples: from its file if there is one, or trained and filed.

  Args:
    experiment: The run, with its own initial weights.
    directory: --public_weights_dir; None: train, and file nothing.
    train: Trains.

  Raises:
    InputError: If the directory can't be written.
  """
  if directory is None:
    return train()
  path = pathlib.Path(directory) / f'{_key(experiment)}.npz'
  with errors.writing_to('public_weights_dir', path.parent):
    path.parent.mkdir(parents=True, exist_ok=True)
  if (found := _read(path, experiment.model)) is not None:
    return found
  found = train()
  with errors.writing_to('public_weights_dir', path.parent):
    _write(path, found)
  return found


def _key(experiment: experiment_lib.Experiment) -> str:
  """A digest of all that the training follows from."""
  data, settings = experiment.data, experiment.settings
  people = data.public_people
  digest = hashlib.blake2b(digest_size=16)
  digest.update(
      json.dumps([
          settings.task, sorted(map(str, settings.task_flags.items())), data.public_digest(),
          None if people is None else np.asarray(people).tolist(), experiment.seeds.partition,
          warm_start.digest(tff.learning.models.ModelWeights(*experiment.model.initial_weights)),
          public_model.LEARNING_RATES, public_model.MAX_EPOCHS, public_model.BATCH_SIZE,
          public_model.CLIPPING_NORM, public_model.AVERAGE_DECAY, public_model.TEMPERATURES,
      ]).encode()
  )
  return digest.hexdigest()


def _read(
    path: pathlib.Path, model: tff.learning.models.FunctionalModel
) -> Optional[public_model.PublicModel]:
  """Returns the model in a file; None if there is none, or if it can't be read."""
  try:
    with np.load(path) as file:
      arrays = dict(file)
    description = json.loads(str(arrays.pop(_DESCRIPTION)))
    flat = [arrays[str(position)] for position in range(len(arrays))]
    trainable, non_trainable = tf.nest.pack_sequence_as(model.initial_weights, flat)
    weights = tff.learning.models.ModelWeights(trainable, non_trainable)
    return public_model.PublicModel(weights=weights, **description)
  except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
    return None


def _write(path: pathlib.Path, found: public_model.PublicModel) -> None:
  """Writes a file that appears when whole: several runs may train at once."""
  flat = tf.nest.flatten((found.weights.trainable, found.weights.non_trainable))
  arrays = {str(position): np.asarray(array) for position, array in enumerate(flat)}
  with tempfile.NamedTemporaryFile(dir=path.parent, suffix='.unfinished', delete=False) as file:
    try:
      np.savez(file, **arrays, **{_DESCRIPTION: json.dumps(found.as_dict())})
      file.flush()
      os.replace(file.name, path)
    except BaseException:
      pathlib.Path(file.name).unlink(missing_ok=True)
      raise
