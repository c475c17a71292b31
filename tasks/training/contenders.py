"""Builds what the benchmark compares: one local training by stock `tff.learning` and by this project."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tasks.datasets import task as task_lib
from tasks.models import initializers

RATIO = 0.005


@dataclasses.dataclass(frozen=True)
class Contender:
  """A learning process with the clients of a round."""

  process: tff.learning.templates.LearningProcess
  clients: list[tf.data.Dataset]


def _optimizer(settings: task_lib.PaperSettings) -> tff.learning.optimizers.Optimizer:
  return tff.learning.optimizers.build_sgdm(settings.learning_rate, settings.momentum)


def _datasets(data: task_lib.TaskData, num_clients: int) -> list[tf.data.Dataset]:
  """Datasets of the first clients, again from the first where there are too few."""
  return [
      tf.data.Dataset.from_tensor_slices(data.clients[i % len(data.clients)])
      for i in range(num_clients)
  ]


def fed_smp(
    task: task_lib.Task,
    data: task_lib.TaskData,
    num_clients: int,
    sparsifier: fedsmp_tff.Sparsifier,
) -> Contender:
  """`build_fed_smp` with the task's settings."""
  settings = task.settings
  process = fedsmp_tff.build_fed_smp(
      task.build_model(initializers.KerasInitializer(0)),
      fedsmp_tff.LocalTraining(
          _optimizer(settings), settings.batch_size, epochs=settings.local_epochs
      ),
      fedsmp_tff.FedSmpFactory(
          sparsifier,
          fedsmp_tff.Mechanism(
              num_clients, settings.clipping_norm, settings.noise_multiplier
          ),
      ),
  )
  return Contender(process, _datasets(data, num_clients))


def stock(
    task: task_lib.Task, data: task_lib.TaskData, num_clients: int
) -> Contender:
  """`build_unweighted_fed_avg` with a Keras model and `dp_aggregator`.

  The CNN is TFF's own, the LSTM of TFF's layers and sizes.
  """
  settings = task.settings
  baselines = tff.simulation.baselines
  x, _ = data.test

  def model_fn():
    if task.name == 'fashion_mnist':
      model = baselines.emnist.emnist_models.create_original_fedavg_cnn_model(
          only_digits=True
      )
      loss = tf.keras.losses.SparseCategoricalCrossentropy()
      spec = (tf.TensorSpec([None, 28, 28, 1]), tf.TensorSpec([None], tf.int32))
    else:
      layers = tf.keras.layers
      # TFF's baseline masks the padding too, which makes Keras slower still.
      model = tf.keras.Sequential([
          layers.Embedding(90, 8, input_length=x.shape[1]),
          layers.LSTM(256, return_sequences=True),
          layers.LSTM(256, return_sequences=True),
          layers.Dense(90),
      ])
      loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
      spec = (tf.TensorSpec([None, x.shape[1]], tf.int32),) * 2
    return tff.learning.models.from_keras_model(model, loss=loss, input_spec=spec)

  process = tff.learning.algorithms.build_unweighted_fed_avg(
      model_fn,
      _optimizer(settings),
      model_aggregator=tff.learning.dp_aggregator(
          settings.noise_multiplier, num_clients
      ),
  )

  def batches(dataset):
    if task.name == 'fashion_mnist':
      dataset = dataset.map(lambda x, y: (tf.cast(x, tf.float32) / 255, y))
    return (
        dataset.shuffle(max(int(dataset.cardinality()), 1))
        .repeat(settings.local_epochs)
        .batch(settings.batch_size)
    )

  return Contender(process, [batches(d) for d in _datasets(data, num_clients)])


def aggregators(dim: int, num_clients: int, with_stock: bool) -> dict[str, Any]:
  """Returns aggregation processes of float32[dim] by name, this project's first."""
  value_type = tff.types.to_type((np.float32, (dim,)))
  mechanism = fedsmp_tff.Mechanism(num_clients, clipping_norm=1.0, noise_multiplier=1.0)
  factories = {
      'randk 0.005': fedsmp_tff.FedSmpFactory(fedsmp_tff.RandK(RATIO), mechanism),
      'dense': fedsmp_tff.FedSmpFactory(fedsmp_tff.Dense(), mechanism),
  }
  if with_stock:
    factories['dp_aggregator'] = tff.learning.dp_aggregator(1.0, num_clients)
    factories['secure_aggregator'] = tff.learning.secure_aggregator(weighted=False)
  return {name: factory.create(value_type) for name, factory in factories.items()}


def updates(dim: int, num_clients: int) -> list[tf.Tensor]:
  """Random updates of norm about 0.1; clients share four, to leave memory alone."""
  rng = np.random.default_rng(0)
  scale = 0.1 / np.sqrt(dim)
  made = [
      tf.constant(rng.standard_normal(dim, np.float32) * np.float32(scale))
      for _ in range(min(num_clients, 4))
  ]
  return [made[i % len(made)] for i in range(num_clients)]


def training_flops(data: task_lib.TaskData, num_clients: int, epochs: int) -> float:
  """Floating-point operations of the Fashion-MNIST CNN's training by these clients.

  Two for each multiply-add of convolutions and dense layers, forward; as many for the
  gradient by weights, and by inputs but for the first layer's.
  """
  first = 28 * 28 * 25 * 1 * 32
  rest = 14 * 14 * 25 * 32 * 64 + 7 * 7 * 64 * 512 + 512 * 10
  examples = sum(len(data.clients[i % len(data.clients)][0]) for i in range(num_clients))
  return 2.0 * (2 * first + 3 * rest) * examples * epochs
