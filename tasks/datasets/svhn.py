"""Street View House Numbers (Netzer et al. 2011) from its .mat files, split evenly."""

from __future__ import annotations

import pathlib
import typing

from absl import flags
import numpy as np

from tasks import errors
from tasks.datasets import showing
from tasks.datasets import task as task_lib
from tasks.models import initializers

if typing.TYPE_CHECKING:
  import tensorflow_federated as tff

_IMAGE_SHAPE = (32, 32, 3)
_NUM_CLASSES = 10

_DIR = flags.DEFINE_string(
    'svhn_dir',
    None,
    'Directory of train_32x32.mat, extra_32x32.mat and test_32x32.mat (cropped'
    ' digits, format 2), from http://ufldl.stanford.edu/housenumbers.',
)
_CLIENTS = flags.DEFINE_integer(
    'svhn_clients',
    6000,
    'Number of clients among which the training images are split evenly.',
    lower_bound=1,
)
_FILTERS = flags.DEFINE_list(
    'svhn_filters', ['64', '128'], 'Filters of each convolution.'
)
_DENSE_UNITS = flags.DEFINE_list(
    'svhn_dense_units', ['384', '192'], 'Units of each hidden dense layer.'
)


def _build_model(
    initializer: initializers.Initializer,
) -> tff.learning.models.FunctionalModel:
  from tasks.models import cnn  # pylint: disable=g-import-not-at-top

  return cnn.cnn(
      _IMAGE_SHAPE,
      task_lib.sizes(_FILTERS),
      task_lib.sizes(_DENSE_UNITS),
      _NUM_CLASSES,
      initializer,
  )


def _load(seed: int, num_public: int, num_held_out: int = 0) -> task_lib.TaskData:
  if _DIR.value is None:
    raise errors.InputError(
        'SVHN: --svhn_dir is not set; get train_32x32.mat, extra_32x32.mat and'
        ' test_32x32.mat from http://ufldl.stanford.edu/housenumbers and name'
        ' their directory.'
    )
  parts = ('train', 'extra', 'test')
  paths = [pathlib.Path(_DIR.value) / f'{part}_32x32.mat' for part in parts]
  for path in paths:
    if not path.is_file():
      raise errors.InputError(
          f'SVHN: {path} does not exist; get it from'
          ' http://ufldl.stanford.edu/housenumbers (cropped digits), or name'
          ' another directory with --svhn_dir.'
      )
  train, extra, test = map(_read_mat, paths)
  x, y = (np.concatenate(pair) for pair in zip(train, extra))
  return task_lib.cut_pool(
      (x, y), test, _CLIENTS.value,
      f'real: SVHN, {len(x):,} training images (train and extra)',
      np.random.default_rng(seed), num_public, num_held_out,
  )


def _read_mat(path: pathlib.Path) -> task_lib.Examples:
  """Images uint8[N, 32, 32, 3] and labels int32[N]; the file's label 10 is digit 0."""
  import scipy.io  # pylint: disable=g-import-not-at-top

  try:
    content = scipy.io.loadmat(path)
    images = np.moveaxis(content['X'], -1, 0)
    labels = content['y'].reshape(-1)
    task_lib.check_labels(labels, 1, _NUM_CLASSES)
  # SciPy raises many kinds of errors on a damaged file.
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise errors.InputError(
        f'{path} can\'t be read as a MATLAB file with X and y'
        f' ({type(error).__name__}: {error}); download it again.'
    ) from None
  if images.shape != (len(labels), *_IMAGE_SHAPE) or images.dtype != np.uint8:
    raise errors.InputError(
        f'{path} has images {images.dtype}{images.shape} for {len(labels)}'
        ' labels, not uint8[N, 32, 32, 3]; download it again.'
    )
  return np.ascontiguousarray(images), labels.astype(np.int32) % _NUM_CLASSES


TASK = task_lib.Task(
    name='svhn',
    title='SVHN digits, CNN',
    settings=task_lib.PaperSettings(
        rounds=180,
        clients_per_round=100,
        noise_multiplier=1.4,
        clipping_norm=0.4,
        population=None,
        learning_rate=0.05,
        learning_rate_decay=0.99,
        learning_rate_decay_rounds=1,
        momentum=0.8,
        batch_size=50,
        local_epochs=5,
        public_examples=2000,
        topk_ratio=0.01,
        randk_ratio=0.4,
    ),
    build_model=_build_model,
    load=_load,
    num_clients=lambda: _CLIENTS.value,
    show=showing.confusion_table('0123456789'),
)
