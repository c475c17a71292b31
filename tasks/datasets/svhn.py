"""Street View House Numbers (Netzer et al. 2011) from its .mat files, cut into clients."""

from collections.abc import Mapping
import pathlib

import numpy as np

from tasks import errors
from tasks.datasets import confusion_matrix
from tasks.datasets import files
from tasks.datasets import label_skew
from tasks.datasets import task as task_lib

_IMAGE_SHAPE = (32, 32, 3)
_NUM_CLASSES = 10
_NUM_CLIENTS = 6000


def _load(own: label_skew.Options, split: task_lib.Split) -> task_lib.TaskData:
  names = [f'{part}_32x32.mat' for part in ('train', 'extra', 'test')]
  remedy = (
      f'Download {", ".join(names)} from http://ufldl.stanford.edu/housenumbers (cropped digits,'
      ' format 2), and name their directory with --data_dir'
  )
  if split.directory is None:
    raise errors.InputError(f'{names[0]} does not exist. {remedy}.')
  paths = files.find([split.directory], names, remedy)
  train, extra, test = map(_read_mat, paths)
  x, y = map(np.concatenate, zip(train, extra))
  source = f'real: SVHN, {len(x):,} training images (train and extra)'
  return task_lib.cut_pool((x, y), test, _NUM_CLIENTS, source, split, own.dirichlet)


def _read_mat(path: pathlib.Path) -> task_lib.Examples:
  """Returns images uint8[N, 32, 32, 3] and labels int32[N]; the file's label 10 is digit 0."""
  with files.reading(path):
    content = _read_variables(path)
    images = np.moveaxis(content['X'], -1, 0)
    labels = content['y'].reshape(-1)
    files.check_labels(labels, 1, _NUM_CLASSES)
    if images.shape != (len(labels), *_IMAGE_SHAPE) or images.dtype != np.uint8:
      raise ValueError(
          f'images {images.dtype}{images.shape} for {len(labels)} labels, not uint8[N, 32, 32, 3]'
      )
  return np.ascontiguousarray(images), labels.astype(np.int32) % _NUM_CLASSES


def _read_variables(path: pathlib.Path) -> Mapping[str, np.ndarray]:
  """Returns the variables X and y of a .mat file of any version."""
  import scipy.io  # pylint: disable=g-import-not-at-top

  try:
    return scipy.io.loadmat(path)
  except NotImplementedError:  # MATLAB 7.3: an HDF5 file, with dimensions in reverse order.
    import h5py  # Comes with TensorFlow.  pylint: disable=g-import-not-at-top

    with h5py.File(path) as file:
      return {name: np.transpose(file[name]) for name in ('X', 'y')}


TASK = task_lib.Task(
    name='svhn',
    title='SVHN digits, CNN',
    # The paper's settings, at an epsilon for the clients in the data: untuned, for lack of data.
    defaults=task_lib.Defaults(
        epsilon=1.01, rounds=180, clients_per_round=100, clip=0.4, p=0.01, public_examples=2000,
        learning_rate=0.05, learning_rate_decay=0.99, momentum=0.8, batch_size=50, local_epochs=5,
    ),
    load=_load,
    build_model=task_lib.cnn(_IMAGE_SHAPE, (64, 128), (384, 192), _NUM_CLASSES),
    options=label_skew.Options,
    show=confusion_matrix.confusion_table('0123456789'),
)
