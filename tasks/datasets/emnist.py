"""Federated EMNIST (Caldas et al. 2018) by writer, through TFF's own loader and cache."""

from __future__ import annotations

import typing

from absl import flags
import numpy as np

from tasks import errors
from tasks.datasets import people
from tasks.datasets import task as task_lib
from tasks.models import initializers

if typing.TYPE_CHECKING:
  import tensorflow_federated as tff

_NUM_CLASSES = 62
# TFF's converter to functional models can't take its model with dropout.
_MODELS = ('cnn', 'tff_cnn', 'tff_2nn')

_CACHE_DIR = flags.DEFINE_string(
    'emnist_cache_dir',
    None,
    'Directory where TFF keeps emnist_all.sqlite; it downloads it there if it is'
    ' missing (default: ~/.tff).',
)
_TEST = people.define_test_flag('emnist', 'the test part of each client\'s own images')
_MODEL = flags.DEFINE_enum(
    'emnist_model',
    'cnn',
    _MODELS,
    'cnn: the Fashion-MNIST CNN at 62 classes; the others: TFF\'s own models.',
)
_FILTERS = flags.DEFINE_list(
    'emnist_filters', ['32', '64'], 'Filters of each convolution (model cnn).'
)
_DENSE_UNITS = flags.DEFINE_list(
    'emnist_dense_units', ['512'], 'Units of each hidden dense layer (model cnn).'
)


def _build_model(
    initializer: initializers.Initializer,
) -> tff.learning.models.FunctionalModel:
  import tensorflow_federated as tff  # pylint: disable=g-import-not-at-top

  from tasks.models import cnn  # pylint: disable=g-import-not-at-top

  if _MODEL.value == 'cnn':
    return cnn.cnn(
        (28, 28, 1),
        task_lib.sizes(_FILTERS),
        task_lib.sizes(_DENSE_UNITS),
        _NUM_CLASSES,
        initializer,
    )
  if initializer.name != 'keras':
    raise errors.InputError(
        f'--initializer={initializer.name} has no effect with --emnist_model='
        f'{_MODEL.value}, which is TFF\'s Keras model; remove one of the two.'
    )
  library = tff.simulation.baselines.emnist.emnist_models
  create = {
      'tff_cnn': library.create_original_fedavg_cnn_model,
      'tff_2nn': library.create_two_hidden_layer_model,
  }[_MODEL.value]
  return cnn.from_keras_images(
      create(only_digits=False, debug_seed=initializer.seed), (28, 28, 1)
  )


def _load(seed: int, num_public: int, num_held_out: int = 0) -> task_lib.TaskData:
  import tensorflow_federated as tff  # pylint: disable=g-import-not-at-top

  from tasks.datasets import tff_data  # pylint: disable=g-import-not-at-top

  with tff_data.loading(
      'federated EMNIST', 'emnist_all.sqlite', _CACHE_DIR.value, 'emnist_cache_dir'
  ):
    parts = tff.simulation.datasets.emnist.load_data(
        only_digits=False, cache_dir=_CACHE_DIR.value
    )
    writers = tff_data.read_people(parts, _to_examples)
  return people.divide(
      people.in_hashed_order(writers, 'writers'),
      _TEST.value == people.PER_CLIENT,
      f'real: federated EMNIST, {len(writers):,} writers',
      np.random.default_rng(seed), num_public, num_held_out,
  )


def _to_examples(elements) -> task_lib.Examples:
  if not elements:
    raise ValueError('it is listed, but has no images')
  pixels = np.stack([element['pixels'] for element in elements])
  if not np.all((0 <= pixels) & (pixels <= 1)):
    raise ValueError('a pixel is not a number from 0 to 1')
  labels = np.array([element['label'] for element in elements], np.int32)
  task_lib.check_labels(labels, 0, _NUM_CLASSES - 1)
  # The floats are k/255, with 1 the background; the model scales them back.
  images = np.rint(pixels * 255).astype(np.uint8)
  return images[..., np.newaxis], labels


TASK = task_lib.Task(
    name='emnist',
    title='EMNIST characters by writer, CNN (not in the paper; this project\'s settings)',
    settings=task_lib.PaperSettings(
        rounds=180,
        clients_per_round=100,
        noise_multiplier=1.4,
        clipping_norm=1.0,
        population=None,
        learning_rate=0.125,
        learning_rate_decay=0.99,
        learning_rate_decay_rounds=1,
        momentum=0.5,
        batch_size=20,
        local_epochs=1,
        public_examples=1000,
        topk_ratio=0.01,
        randk_ratio=0.4,
    ),
    build_model=_build_model,
    load=_load,
)
