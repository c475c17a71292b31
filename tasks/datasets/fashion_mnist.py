"""Fashion-MNIST (Xiao et al. 2017) from IDX files, split evenly among clients."""

from __future__ import annotations

import gzip
import math
import pathlib
import typing
import zlib

from absl import flags
import numpy as np

from tasks import errors
from tasks.datasets import showing
from tasks.datasets import task as task_lib
from tasks.models import initializers

if typing.TYPE_CHECKING:
  import tensorflow_federated as tff

_IMAGE_SHAPE = (28, 28, 1)
_NUM_CLASSES = 10
_IDX_UNSIGNED_BYTES = 8

_DIR = flags.DEFINE_string(
    'fashion_mnist_dir',
    '/usr/share/datasets/fashion-mnist',
    'Directory of the four IDX files *-ubyte.gz, as Debian\'s package'
    ' dataset-fashion-mnist installs them.',
)
_CLIENTS = flags.DEFINE_integer(
    'fashion_mnist_clients',
    6000,
    'Number of clients among which the training images are split evenly.',
    lower_bound=1,
)
_FILTERS = flags.DEFINE_list(
    'fashion_mnist_filters', ['32', '64'], 'Filters of each convolution.'
)
_DENSE_UNITS = flags.DEFINE_list(
    'fashion_mnist_dense_units', ['512'], 'Units of each hidden dense layer.'
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
  x, y = _read_images('train')
  return task_lib.cut_pool(
      (x, y), _read_images('t10k'), _CLIENTS.value,
      f'real: Fashion-MNIST, {len(x):,} training images',
      np.random.default_rng(seed), num_public, num_held_out,
  )


def _read_images(part: str) -> task_lib.Examples:
  directory = pathlib.Path(_DIR.value)
  images = _read_idx(directory / f'{part}-images-idx3-ubyte.gz', 3)
  labels_file = directory / f'{part}-labels-idx1-ubyte.gz'
  labels = _read_idx(labels_file, 1)
  if len(images) != len(labels) or images.shape[1:] != _IMAGE_SHAPE[:2]:
    raise errors.InputError(
        f'{labels_file} has {len(labels)} labels for images of shape'
        f' {images.shape}; download both files again, from the same source.'
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
        f'Fashion-MNIST: {path} does not exist; install Debian\'s package'
        ' dataset-fashion-mnist (apt-get install dataset-fashion-mnist), or name'
        ' the directory of its four *-ubyte.gz files with --fashion_mnist_dir.'
    ) from None
  except (OSError, EOFError, zlib.error) as error:
    raise errors.InputError(
        f'{path} can\'t be read as a gzip file ({error}); download it again.'
    ) from None
  header = 4 * (1 + num_dimensions)
  magic = bytes([0, 0, _IDX_UNSIGNED_BYTES, num_dimensions])
  # Zeros in place of sizes that are cut off: the length is wrong all the same.
  sizes = content[4:header].ljust(header - 4, b'\0')
  shape = tuple(int(size) for size in np.frombuffer(sizes, '>u4'))
  if content[:4] != magic or len(content) != header + math.prod(shape):
    raise errors.InputError(
        f'{path} is not an IDX file of {num_dimensions}-dimensional bytes, or is'
        ' cut short; download it again.'
    )
  return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


TASK = task_lib.Task(
    name='fashion_mnist',
    title='Fashion-MNIST images, CNN',
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
        batch_size=10,
        local_epochs=10,
        public_examples=1000,
        topk_ratio=0.005,
        randk_ratio=0.4,
    ),
    build_model=_build_model,
    load=_load,
    num_clients=lambda: _CLIENTS.value,
    show=showing.confusion_table((
        'T-shirt', 'trouser', 'pullover', 'dress', 'coat', 'sandal', 'shirt', 'sneaker', 'bag',
        'ankle boot',
    )),
)
