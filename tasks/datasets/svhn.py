"""Street View House Numbers (Netzer et al. 2011) from its .mat files, split evenly."""

from __future__ import annotations

import pathlib
import typing

import numpy as np

from tasks import errors
from tasks.datasets import showing
from tasks.datasets import task as task_lib
from tasks.models import initializers

if typing.TYPE_CHECKING:
  import tensorflow_federated as tff

_IMAGE_SHAPE = (32, 32, 3)
_NUM_CLASSES = 10

_SOURCE = 'http://ufldl.stanford.edu/housenumbers'
_NUM_CLIENTS = 6000


def _build_model(
    own: None, initializer: initializers.Initializer
) -> tff.learning.models.FunctionalModel:
  del own
  from tasks.models import cnn  # pylint: disable=g-import-not-at-top

  return cnn.cnn(_IMAGE_SHAPE, (64, 128), (384, 192), _NUM_CLASSES, initializer)


def _load(own: None, split: task_lib.Split) -> task_lib.TaskData:
  del own
  if split.directory is None:
    raise errors.InputError(
        'SVHN: --data_dir is not set; get train_32x32.mat, extra_32x32.mat and test_32x32.mat'
        f' (cropped digits, format 2) from {_SOURCE} and name their directory.'
    )
  parts = ('train', 'extra', 'test')
  paths = [pathlib.Path(split.directory) / f'{part}_32x32.mat' for part in parts]
  for path in paths:
    if not path.is_file():
      raise errors.InputError(
          f'SVHN: {path} does not exist; get it from {_SOURCE} (cropped digits), or name another'
          ' directory with --data_dir.'
      )
  train, extra, test = map(_read_mat, paths)
  x, y = (np.concatenate(pair) for pair in zip(train, extra))
  return task_lib.cut_pool(
      (x, y), test, _NUM_CLIENTS, f'real: SVHN, {len(x):,} training images (train and extra)', split
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
    # The paper's, at an epsilon for the clients in the data: not tuned, for want of the data.
    defaults=task_lib.Defaults(
        epsilon=1.01,
        rounds=180,
        clients_per_round=100,
        clip=0.4,
        learning_rate=0.05,
        learning_rate_decay=0.99,
        p=0.01,
        momentum=0.8,
        batch_size=50,
        local_epochs=5,
        public_examples=2000,
    ),
    load=_load,
    build_model=_build_model,
    num_clients=_NUM_CLIENTS,
    show=showing.confusion_table('0123456789'),
)
