"""Fashion-MNIST (Xiao et al. 2017) from IDX files, cut into clients of equal size."""

import dataclasses
import gzip
import os
import pathlib
from typing import Optional

import numpy as np

from tasks.cli import options
from tasks.datasets import confusion_matrix
from tasks.datasets import files
from tasks.datasets import label_skew
from tasks.datasets import task as task_lib

_IMAGE_SHAPE = (28, 28, 1)
_NUM_CLASSES = 10
_IDX_UNSIGNED_BYTES = 0x800
# Of Debian's package, and of `tf.keras.datasets.fashion_mnist.load_data`.
_DIRECTORIES = ('/usr/share/datasets/fashion-mnist', '~/.keras/datasets/fashion-mnist')
_TORCHVISION = 'FashionMNIST/raw'  # Within the `root` of `torchvision.datasets.FashionMNIST`.
_FILES = [
    f'{part}-{values}-ubyte.gz'
    for part in ('train', 't10k') for values in ('images-idx3', 'labels-idx1')
]
_NUM_CLIENTS = 6000
_MOMENTS = 0.2860, 0.3530  # Mean and standard deviation of the training pixels, in [0, 1].


def load(
    num_clients: int, split: task_lib.Split, dirichlet: Optional[float] = None
) -> task_lib.TaskData:
  """Loads the images, cut into clients by `task.cut_pool`; raises `InputError` if a file is bad."""
  train, test = read(split.directory)
  source = f'real: Fashion-MNIST, {len(train[0]):,} training images'
  return task_lib.cut_pool(train, test, num_clients, source, split, dirichlet)


def read(directory: Optional[str]) -> tuple[task_lib.Examples, task_lib.Examples]:
  """Returns training and test images uint8[N, 28, 28, 1] with labels int32[N].

  Args:
    directory: Directory of the files, packed or not, or torchvision's `root` with them; None for
      Debian's package, or else the files that Keras has downloaded.

  Raises:
    InputError: If a file is missing or damaged.
  """
  directories = [os.path.expanduser(path) for path in _DIRECTORIES]
  if directory:
    directories = [directory, pathlib.Path(directory, _TORCHVISION)]
  paths = files.find(
      directories, _FILES,
      "Install Debian's package dataset-fashion-mnist (apt-get install dataset-fashion-mnist), or"
      ' name the directory of its four *-ubyte.gz files, or of these unpacked, with --data_dir',
  )
  return _read_images(*paths[:2]), _read_images(*paths[2:])


def _read_images(images_file: pathlib.Path, labels_file: pathlib.Path) -> task_lib.Examples:
  with files.reading(images_file):
    images = _read_idx(images_file, _IMAGE_SHAPE[:2])
  with files.reading(labels_file):
    labels = _read_idx(labels_file, ())
    files.check_labels(labels, 0, _NUM_CLASSES - 1)
    if len(labels) != len(images):
      raise ValueError(f'{len(labels)} labels for the {len(images)} images of {images_file}')
  return images[..., np.newaxis], labels.astype(np.int32)


def _read_idx(path: pathlib.Path, item_shape: tuple[int, ...]) -> np.ndarray:
  """Reads an IDX file of unsigned bytes: magic and sizes as big-endian int32, then values."""
  with (gzip.open if path.suffix == '.gz' else open)(path, 'rb') as file:
    content = file.read()
  header = np.frombuffer(content, '>u4', 2 + len(item_shape))
  magic, *shape = header.tolist()
  if magic != _IDX_UNSIGNED_BYTES + len(shape) or tuple(shape[1:]) != item_shape:
    raise ValueError(f'not an IDX file of bytes[N, {", ".join(map(str, item_shape))}]')
  return np.frombuffer(content, np.uint8, offset=header.nbytes).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Options(label_skew.Options):
  """The options of the task."""

  standardize: bool = options.option(
      False,
      'Give the model pixels of mean 0 and variance 1, as many PyTorch programs do, in place of'
      ' pixels from 0 to 1. The two constants follow from all training images, and no epsilon'
      ' covers that.',
  )


TASK = task_lib.Task(
    name='fashion_mnist',
    title='Fashion-MNIST images, CNN',
    defaults=task_lib.Defaults(
        epsilon=1.01, rounds=40, clients_per_round=300, clip=0.1, p=0.2,
        learning_rate=0.1, learning_rate_decay=0.99, momentum=0.5,
        server_learning_rate=30.0, server_learning_rate_schedule='linear_decay',
        warm_start='public', trainable='head',
        by_method={
            'fedsmp_topk': {'server_learning_rate': 60.0},
            'fedsmp_randk': {'server_learning_rate': 60.0},
            'fedavg': {'server_learning_rate': 100.0},
        },
    ),
    load=lambda own, split: load(_NUM_CLIENTS, split, own.dirichlet),
    build_model=task_lib.cnn(_IMAGE_SHAPE, (32, 64), (512,), _NUM_CLASSES, _MOMENTS),
    options=Options,
    show=confusion_matrix.confusion_table((
        'T-shirt', 'trouser', 'pullover', 'dress', 'coat', 'sandal', 'shirt', 'sneaker', 'bag',
        'ankle boot',
    )),
)
