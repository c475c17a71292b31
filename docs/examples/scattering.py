"""A frozen body that needs no training: scattering coefficients of Fashion-MNIST's images.

  python -m tasks.run --task=docs.examples.scattering  # Needs kymatio, as in requirements.txt.

An image becomes 729 features (Bruna and Mallat 2013): 81 channels of two layers of wavelets,
averaged to 3 x 3, their logarithms normalized per image. Clients train one dense layer on them.
"""

from concurrent import futures
import dataclasses
import os
import pathlib

import numpy as np

from tasks import errors
from tasks.cli import options
from tasks.datasets import fashion_mnist
from tasks.datasets import task as task_lib
from tasks.models import initializers

_NUM_FEATURES = 729
_BATCH = 250


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this task."""

  clients: int = options.option(6000, 'Number of clients.', at_least=1)
  file: str = options.option(
      'scattering.npz',
      'File of the features, as secret as the images; a run without the file writes it (a minute).',
  )
  components: int = options.option(
      0,
      'Number of principal components of the public features, in place of all 729 features (0):'
      ' fewer coordinates, and so less noise.',
      at_least=0,
      at_most=_NUM_FEATURES,
  )


def features(images: np.ndarray) -> np.ndarray:
  """Returns features float16[B, 729] of images uint8[B, 28, 28, 1]."""
  from kymatio.numpy import Scattering2D  # Eleven times faster than its TensorFlow front end.

  scattering = Scattering2D(J=2, shape=(28, 28))

  def of_batch(batch):
    channels = scattering(batch[..., 0].astype(np.float32) / 255)  # [B, 81, 7, 7]
    windows = np.lib.stride_tricks.sliding_window_view(channels, (3, 3), (2, 3))[:, :, ::2, ::2]
    out = np.log(windows.mean((4, 5)) + 1e-3).reshape(len(batch), _NUM_FEATURES)
    out -= out.mean(axis=1, keepdims=True)
    return (out / out.std(axis=1, keepdims=True)).astype(np.float16)

  batches = [images[i : i + _BATCH] for i in range(0, len(images), _BATCH)]
  with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    return np.concatenate(list(pool.map(of_batch, batches)))


def _load(own: Options, split: task_lib.Split) -> task_lib.TaskData:
  if own.components > split.num_public:
    raise errors.InputError(
        f'--scattering_components={own.components} needs as many public examples, not'
        f' {split.num_public}. Use fewer components or a larger --public_examples.'
    )
  (train, train_labels), (test, test_labels) = fashion_mnist.read(split.directory)
  file = pathlib.Path(own.file)
  if not file.exists():
    unfinished = file.with_suffix(f'.{os.getpid()}.npz')
    np.savez(unfinished, train=features(train), test=features(test))
    unfinished.replace(file)
  with np.load(file) as arrays:
    pool, test = (arrays['train'], train_labels), (arrays['test'], test_labels)
  source = f'real: scattering coefficients of Fashion-MNIST, {len(train):,} training images'
  data = task_lib.cut_pool(pool, test, own.clients, source, split)
  if data.public is None:
    return data
  mean = data.public[0].mean(axis=0, dtype=np.float32)  # For pre-training.
  basis = None
  if own.components:
    _, _, components = np.linalg.svd(data.public[0] - mean, full_matrices=False)
    basis = components[: own.components].T

  def inputs(examples):
    x = examples[0] - mean
    return (x if basis is None else x @ basis).astype(np.float16), examples[1]

  return dataclasses.replace(
      data, clients=[*map(inputs, data.clients)], test=inputs(data.test), public=inputs(data.public)
  )


def _build_model(own: Options, initializer: initializers.Initializer):
  """Returns the last layer: a `SplitModel` whose body has no weights."""
  import tensorflow as tf  # Here, so that --help need not wait for it.

  from tasks.models import cnn
  from tasks.models import split

  width = own.components or _NUM_FEATURES
  return split.SplitModel(
      lambda weights, x: tf.cast(x, tf.float32),
      weights=initializer.dense((width, 10)),
      loss_fn=cnn.cross_entropy,
      input_spec=(tf.TensorSpec([None, width], tf.float16), tf.TensorSpec([None], tf.int32)),
  )


TASK = task_lib.Task(
    name='scattering',
    title='Fashion-MNIST, scattering coefficients',
    defaults=dataclasses.replace(
        fashion_mnist.TASK.defaults, server_learning_rate=20.0, by_method={}
    ),
    load=_load,
    build_model=_build_model,
    options=Options,
    pretraining=task_lib.Pretraining(epochs=40, learning_rate=0.003, temperature=1.0),
    show=fashion_mnist.TASK.show,
)
