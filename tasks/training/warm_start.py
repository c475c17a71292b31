"""Files of initial weights (--warm_start), and whose data they follow from.

Privacy: a start that follows from public data is post-processing of nothing: every round releases
what it did before, from other weights, so epsilon is unchanged. A start that follows from clients'
data is a release of its own, and epsilon covers it only together with the run that made it.
"""

import hashlib
import pathlib
from typing import Any, NamedTuple, Optional
import zipfile

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import errors
from tasks.config import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.training import run_directory


def check(
    source: Optional[str], model: tff.learning.models.FunctionalModel, private: bool
) -> None:
  """Checks --warm_start as far as that needs no data.

  Args:
    source: --warm_start.
    model: The model.
    private: Whether the run claims an epsilon.

  Raises:
    InputError: If the file can't be the model's weights, or no claim can be made from them on.
  """
  if source in (None, settings_lib.PUBLIC):
    return
  path = pathlib.Path(source)
  read(path, model)
  config = _config_beside(path)
  algorithm = config.get('algorithm')
  if private and not _is_private(config) and algorithm not in (None, settings_lib.PUBLIC_ONLY):
    raise errors.InputError(
        f'--warm_start={path} is of a run of {algorithm}, without privacy: no epsilon covers its'
        f' clients; name the weights of a private run, or {settings_lib.PUBLIC}.'
    )


class Origin(NamedTuple):
  """The data that initial weights follow from, and their owners.

  Attributes:
    text: The owners, as a phrase.
    runs: The `run_id` of each private run whose ledger, composed with that of the run that begins
      here, covers them all; None: no ledgers do.
  """

  text: str
  runs: Optional[tuple[str, ...]] = None


def origin(source: Optional[str], data: task_lib.TaskData) -> Optional[Origin]:
  """Returns whose data the initial weights follow from; None: no client's.

  Args:
    source: --warm_start.
    data: The run's data.
  """
  if source in (None, settings_lib.PUBLIC):
    return None
  path = pathlib.Path(source)
  config = _config_beside(path)
  own = _own_origin(path, config, data)
  if (before := origin_of(config)) is None:
    return own
  text = f'of a run of {config.get("algorithm")}' if own is None else own.text
  runs = None
  if before.runs is not None and (own is None or own.runs is not None):
    runs = (*before.runs, *(own.runs if own else ()))
  return Origin(f'{text}; its own initial weights are {before.text}', runs)


def origin_of(config: dict[str, Any]) -> Optional[Origin]:
  """Returns the origin in the config.json of a run; None if it has none."""
  text, runs = config.get('warm_start_origin'), config.get('warm_start_runs')
  return None if text is None else Origin(text, None if runs is None else tuple(runs))


def _own_origin(
    path: pathlib.Path, config: dict[str, Any], data: task_lib.TaskData
) -> Optional[Origin]:
  """As `origin`, without the initial weights of the run that wrote the weights."""
  algorithm = config.get('algorithm')
  if algorithm is None:
    return Origin(
        'of unknown origin: epsilon assumes that they follow from no client\'s data'
    )
  if algorithm == settings_lib.PUBLIC_ONLY:
    if data.public is not None and config.get('public_digest') == data.public_digest():
      return None
    return Origin(
        'trained on other public examples than this run\'s: epsilon assumes that those are no'
        ' client\'s here (the same --seed, --public_examples and --held_out ensure it)'
    )
  if not _is_private(config):
    return Origin(f'of a run of {algorithm}, without privacy')
  if data.split_digest is None or config.get('split_digest') != data.split_digest:
    return Origin(
        f'of a private run of {algorithm} with other clients than this run\'s, or unknown ones:'
        ' its public examples and its clients\' may be clients\' here, and no ledgers cover them'
    )
  # A link's own directory has no ledger.
  run_dir = (path.resolve() if path.is_symlink() else path).parent
  seeded = '' if config.get('seed') is None else ', whose noise its --seed can remove'
  return Origin(
      f'of a private run of {algorithm}{seeded}: name --ledger={run_dir} beside this run\'s directory'
      ' to python -m tasks.account, which composes them',
      (config['run_id'],),
  )


def _is_private(config: dict[str, Any]) -> bool:
  """Whether a run added noise."""
  return bool((config.get('privacy') or {}).get('noise_multiplier'))


def _config_beside(path: pathlib.Path) -> dict[str, Any]:
  """Returns the config.json of the run whose weights a file has; empty if there is none."""
  # A link may lead into another run's directory; a file of another name can be of any origin.
  path = path.resolve()
  if not path.match('weights*.npz'):
    return {}
  return run_directory.read_json(path.parent / run_directory.CONFIG)


def read(path: pathlib.Path, model: tff.learning.models.FunctionalModel) -> Any:
  """Returns the weights in a file, as `ModelWeights` of the model.

  Args:
    path: A run's weights.npz.
    model: The model.

  Raises:
    InputError: If it can't be read, or has other shapes.
  """
  def refused(problem):
    return errors.InputError(
        f'--warm_start={path} {problem}; name the weights.npz of a run with the same model, or'
        f' {settings_lib.PUBLIC}.'
    )

  try:
    with np.load(path) as file:
      arrays = dict(file)
  # TypeError: a file of one array.
  except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
    raise refused(f'can\'t be read ({getattr(error, "strerror", None) or error})') from None
  parts = []
  for kind, expected in zip(('trainable', 'non_trainable'), model.initial_weights):
    flat = tf.nest.flatten(expected)
    own = [arrays.get(f'{kind}_{position}') for position in range(len(flat))]
    if not all(map(_fits, own, flat)):
      raise refused('lacks weights of this model\'s shapes and types')
    if not all(np.isfinite(array).all() for array in own):
      raise refused('has weights that are not finite')
    parts.append(tf.nest.pack_sequence_as(expected, own))
  return tff.learning.models.ModelWeights(*parts)


def digest(weights: tff.learning.models.ModelWeights) -> str:
  """Returns a digest of weights, by which a run that resumes recognizes its start."""
  found = hashlib.blake2b(digest_size=16)
  for array in tf.nest.flatten((weights.trainable, weights.non_trainable)):
    found.update(np.ascontiguousarray(array))
  return found.hexdigest()


def _fits(array: Optional[np.ndarray], weight: Any) -> bool:
  """Whether an array has the shape and type of a weight."""
  weight = np.asarray(weight)
  return array is not None and (array.shape, array.dtype) == (weight.shape, weight.dtype)
