"""Data as the features of a frozen body: the public and the test set at once, clients when used."""

from collections.abc import Callable, Iterable, Sequence
import concurrent.futures
import dataclasses
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tasks.datasets import task as task_lib
from tasks.models import split as split_lib

# A constant, so that the last bits of features depend on no other client's examples.
_BATCH = 250
# Memory for datasets of clients; beyond it, features are computed at each visit.
KEPT_BYTES = 4 * 10**9
_PROGRESS_LINES = 4


def of_data(
    data: task_lib.TaskData, body: Callable[[tf.Tensor], tf.Tensor], spec: tf.TensorSpec
) -> task_lib.TaskData:
  """Returns data with the features that `body` makes of x; clients' are computed at each access."""
  features_of = _features_fn(lambda x: body(x), spec)

  class Clients(Sequence):

    def __len__(self) -> int:
      return len(data.clients)

    def __getitem__(self, client: int) -> task_lib.Examples:
      return features_of(data.clients[client])

  return dataclasses.replace(
      data, clients=Clients(), test=features_of(data.test, _parallel_map),
      public=features_of(data.public, _parallel_map),
  )


def split(
    model: split_lib.SplitModel, weights: tff.learning.models.ModelWeights,
    public: task_lib.Examples, is_scored: Callable[[tf.Tensor], tf.Tensor],
) -> tuple[split_lib.FrozenBody, tff.learning.models.ModelWeights]:
  """Returns the frozen body and the initial weights of the head, together a model's function.

  Args:
    model: The model.
    weights: Its pre-trained weights.
    public: The public examples, which whiten the features.
    is_scored: See `Task.is_scored`; features of other labels, such as padding, do not count.

  Raises:
    ValueError: If the features of the public examples do not differ.
  """
  *body_weights, kernel, bias = weights.trainable
  features_of = _features_fn(lambda x: model.body(body_weights, x), model.input_spec[0])
  features, labels = features_of(public, _parallel_map)
  whitening = split_lib.whitening(features[np.asarray(is_scored(tf.constant(labels)))])
  body = split_lib.FrozenBody(model.body, tuple(body_weights), *whitening)
  return body, body.head_of(kernel, bias)


def _features_fn(
    body: Callable[[tf.Tensor], tf.Tensor], spec: tf.TensorSpec
) -> Callable[[task_lib.Examples], task_lib.Examples]:
  traced = tf.function(body, input_signature=[spec], autograph=False)

  def features_of(examples, map_fn=map):
    x, y = examples
    batches = [x[i : i + _BATCH] for i in range(0, max(len(x), 1), _BATCH)]
    parts = map_fn(lambda batch: traced(tf.constant(batch, spec.dtype)).numpy(), batches)
    return np.concatenate([*parts]), y

  return features_of


def _parallel_map(function: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
  """Returns the function of each value; the processors share them, as TensorFlow frees Python."""
  with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    return [*pool.map(function, values)]


class ClientData:
  """Maps participants to their datasets, each made when it is first sampled, and kept."""

  def __init__(self, data: task_lib.TaskData, tagged: bool, at_once: bool = False):
    """Initializes.

    Args:
      data: The examples.
      tagged: Whether to add the client's number (`fedsmp_tff.tag_client`).
      at_once: Whether to make all clients' datasets when the first is sampled: features take most
        of the time, and the processors share them.
    """
    self._data = data
    self._tagged = tagged
    self._at_once = at_once
    self._datasets = {}
    self._free_bytes = KEPT_BYTES

  def __call__(self, client: int):
    if self._at_once:
      self._at_once = False
      self._make_all()
    if client not in self._datasets:
      return self._keep(client, self._dataset(client))
    return self._datasets[client]

  def _make_all(self) -> None:
    """Makes the datasets of all clients that memory has room for."""
    clients = np.arange(len(self._data.clients))
    for part in np.array_split(clients, min(_PROGRESS_LINES, len(clients))):
      for client, made in zip(part, _parallel_map(self._dataset, part)):
        self._keep(int(client), made)
      if self._free_bytes < 0:
        return
      print(
          f'features: {part[-1] + 1:,} of {len(clients):,} clients', file=sys.stderr, flush=True
      )

  def _dataset(self, client: int) -> tuple[tf.data.Dataset, int]:
    """Returns a participant's dataset and its bytes."""
    # Negative: a dummy participant, without examples.
    examples = [x[:0] for x in self._data.test] if client < 0 else self._data.clients[client]
    dataset = tf.data.Dataset.from_tensor_slices(tuple(examples))
    if self._tagged:
      dataset = fedsmp_tff.tag_client(client, dataset)
    return dataset, sum(array.nbytes for array in examples)

  def _keep(self, client: int, made: tuple[tf.data.Dataset, int]) -> tf.data.Dataset:
    dataset, num_bytes = made
    self._free_bytes -= num_bytes
    if self._free_bytes >= 0:
      self._datasets[client] = dataset
    return dataset
