"""Fashion-MNIST (Xiao et al. 2017) from IDX files, split evenly among clients."""

import gzip
import math
import pathlib
import zlib

import numpy as np

from tasks import errors
from tasks.datasets import showing
from tasks.datasets import task as task_lib

_IMAGE_SHAPE = (28, 28, 1)
_NUM_CLASSES = 10
_IDX_UNSIGNED_BYTES = 8
_DIRECTORY = '/usr/share/datasets/fashion-mnist'  # Where Debian's package puts the files.
_NUM_CLIENTS = 6000


def load(num_clients: int, split: task_lib.Split) -> task_lib.TaskData:
  """Loads the images, split evenly among clients; raises `InputError` if a file is bad."""
  directory = pathlib.Path(split.directory or _DIRECTORY)
  x, y = _read_images(directory, 'train')
  return task_lib.cut_pool(
      (x, y), _read_images(directory, 't10k'), num_clients,
      f'real: Fashion-MNIST, {len(x):,} training images', split,
  )


def _read_images(directory: pathlib.Path, part: str) -> task_lib.Examples:
  images = _read_idx(directory / f'{part}-images-idx3-ubyte.gz', 3)
  labels_file = directory / f'{part}-labels-idx1-ubyte.gz'
  labels = _read_idx(labels_file, 1)
  if len(images) != len(labels) or images.shape[1:] != _IMAGE_SHAPE[:2]:
    raise errors.InputError(
        f'{labels_file} has {len(labels)} labels for images of shape {images.shape}; download both'
        ' files again, from the same source.'
    )
  try:
    task_lib.check_labels(labels, 0, _NUM_CLASSES - 1)
  except ValueError as error:
    raise errors.InputError(f'{labels_file}: {error}; download it again.') from None
  return images[..., np.newaxis], labels.astype(np.int32)


def _read_idx(path: pathlib.Path, num_dimensions: int) -> np.ndarray:
  """Reads an IDX file of unsigned bytes: magic, sizes as big-endian int32, values."""
  try:
    with gzip.open(path) as file:
      content = file.read()
  except FileNotFoundError:
    raise errors.InputError(
        f'Fashion-MNIST: {path} does not exist; install Debian\'s package dataset-fashion-mnist'
        ' (apt-get install dataset-fashion-mnist), or name the directory of its four *-ubyte.gz'
        ' files with --data_dir.'
    ) from None
  except (OSError, EOFError, zlib.error) as error:
    raise errors.InputError(
        f'{path} can\'t be read as a gzip file ({error}); download it again.'
    ) from None
  header = 4 * (1 + num_dimensions)
  magic = bytes([0, 0, _IDX_UNSIGNED_BYTES, num_dimensions])
  # Sizes that are cut off become zero: the length is wrong all the same.
  sizes = content[4:header].ljust(header - 4, b'\0')
  shape = tuple(int(size) for size in np.frombuffer(sizes, '>u4'))
  if content[:4] != magic or len(content) != header + math.prod(shape):
    raise errors.InputError(
        f'{path} is not an IDX file of {num_dimensions}-dimensional bytes, or is cut short;'
        ' download it again.'
    )
  return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


TASK = task_lib.Task(
    name='fashion_mnist',
    title='Fashion-MNIST images, CNN',
    defaults=task_lib.Defaults(
        epsilon=1.01, rounds=40, clients_per_round=300, clip=0.1,
        learning_rate=0.1, learning_rate_decay=0.99, momentum=0.5,
        server_learning_rate=30.0, server_learning_rate_schedule='linear_decay',
        warm_start='public', trainable='head',
    ),
    load=lambda own, split: load(_NUM_CLIENTS, split),
    build_model=task_lib.cnn(_IMAGE_SHAPE, (32, 64), (512,), _NUM_CLASSES),
    show=showing.confusion_table((
        'T-shirt', 'trouser', 'pullover', 'dress', 'coat', 'sandal', 'shirt', 'sneaker', 'bag',
        'ankle boot',
    )),
)
