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
# Clients whose features are made together, and clients per line of progress.
_CLIENTS, _CLIENTS_PER_LINE = 64, 1024


class Features(Sequence):
  """The features of clients, made at each access."""

  def __init__(
      self, clients: Sequence[task_lib.Examples],
      features_of: Callable[[task_lib.Examples], task_lib.Examples],
  ):
    self._clients, self._features_of = clients, features_of

  def __len__(self) -> int:
    return len(self._clients)

  def __getitem__(self, client: int) -> task_lib.Examples:
    return self._features_of(self._clients[client])

  def of(self, clients: Iterable[int]) -> list[task_lib.Examples]:
    """Returns the features of several clients."""
    # The task's own clients are read in this thread alone.
    return _parallel_map(self._features_of, [self._clients[client] for client in clients])


def of_data(
    data: task_lib.TaskData, body: Callable[[tf.Tensor], tf.Tensor], spec: tf.TensorSpec
) -> task_lib.TaskData:
  """Returns data with the features that `body` makes of x; clients' are computed at each access."""
  features_of = _features_fn(lambda x: body(x), spec)
  return dataclasses.replace(
      data, clients=Features(data.clients, features_of), test=features_of(data.test, _parallel_map),
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
  """Maps participants to their datasets, and keeps these.

  Datasets are made when a client is first sampled; those of features at once, since they take
  longer, and all processors make them together.
  """

  def __init__(self, data: task_lib.TaskData, tagged: bool):
    """Initializes; `tagged` adds a client's number (`fedsmp_tff.tag_client`)."""
    self._data = data
    self._tagged = tagged
    self._datasets = {}
    self._free_bytes = KEPT_BYTES
    if isinstance(data.clients, Features):
      self._make_all()

  def __call__(self, client: int):
    if client in self._datasets:
      return self._datasets[client]
    # Negative: a dummy participant, without examples.
    examples = [x[:0] for x in self._data.test] if client < 0 else self._data.clients[client]
    return self._dataset(client, examples)

  def _make_all(self) -> None:
    """Makes the datasets of all clients that memory has room for."""
    num = len(self._data.clients)
    for start in range(0, num, _CLIENTS):
      part = range(start, min(start + _CLIENTS, num))
      for client, examples in zip(part, self._data.clients.of(part)):
        self._dataset(client, examples)
      if self._free_bytes < 0:
        return
      if part.stop % _CLIENTS_PER_LINE == 0 or part.stop == num:
        print(f'features: {part.stop:,} of {num:,} clients', file=sys.stderr, flush=True)

  def _dataset(self, client: int, examples: Sequence[np.ndarray]):
    """Returns a participant's dataset, and keeps it if there is room."""
    dataset = tf.data.Dataset.from_tensor_slices(tuple(examples))
    if self._tagged:
      dataset = fedsmp_tff.tag_client(client, dataset)
    self._free_bytes -= sum(array.nbytes for array in examples)
    if self._free_bytes >= 0:
      self._datasets[client] = dataset
    return dataset
