"""Data as the features of a frozen body: the public and the test set at once, clients when used."""

from collections.abc import Callable, Sequence
import concurrent.futures
import ctypes
import dataclasses
import os
import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tasks.datasets import task as task_lib
from tasks.models import split as split_lib

# A constant, so that the last bits of features depend on no other client's examples. An LSTM of 80
# steps takes 5 MB per example and thread while it runs; larger batches are no faster.
_BATCH = 64
# Memory for datasets of clients; beyond it, features are computed at each visit.
KEPT_BYTES = 4 * 10**9
# Batches of at most `_SMALL` examples are computed `_GROUP` per call: TensorFlow takes as long for
# ten images as Python for a call.
_GROUP, _SMALL = 16, 16
# glibc keeps what a thread has freed for that thread. TensorFlow's optimization of the LSTM's graph
# alone frees 390 MB, which this function returns to the system.
_malloc_trim = ctypes.CDLL(None).malloc_trim
# Clients whose features are made together, and clients per line of progress.
_CLIENTS, _CLIENTS_PER_LINE = 128, 512

# Maps the examples of several clients to their features, as tensors, which datasets do not copy.
FeaturesFn = Callable[[Sequence[task_lib.Examples]], list[tuple[tf.Tensor, np.ndarray]]]


class Features(Sequence):
  """The features of clients, made at each access."""

  def __init__(self, clients: Sequence[task_lib.Examples], features_of: FeaturesFn):
    self.examples, self.features_of = clients, features_of

  def __len__(self) -> int:
    return len(self.examples)

  def __getitem__(self, client: int) -> tuple[tf.Tensor, np.ndarray]:
    return self.features_of([self.examples[client]])[0]


def of_data(
    data: task_lib.TaskData, body: Callable[[tf.Tensor], tf.Tensor], spec: tf.TensorSpec
) -> task_lib.TaskData:
  """Returns data with the features that `body` makes of x; clients' are computed at each access."""
  features_of = _features_fn(lambda x: body(x), spec)
  test, public = features_of([data.test, data.public])
  _malloc_trim(0)
  return dataclasses.replace(
      data, clients=Features(data.clients, features_of), test=test, public=public
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
  [(features, labels)] = features_of([public])
  features = np.asarray(features)  # Shares the tensor's memory, unlike `numpy()`.
  scored = np.reshape(is_scored(tf.constant(labels)), features.shape[:-1])
  whitening = split_lib.whitening(features[scored])
  body = split_lib.FrozenBody(model.body, tuple(body_weights), *whitening)
  return body, body.head_of(kernel, bias)


def _features_fn(body: Callable[[tf.Tensor], tf.Tensor], spec: tf.TensorSpec) -> FeaturesFn:
  traced = tf.function(body, input_signature=[spec], autograph=False)

  @tf.function(input_signature=[spec] * _GROUP, autograph=False)
  def traced_group(*batches):
    return [traced(batch) for batch in batches]

  def of_group(group):
    batches = [tf.constant(batch, spec.dtype) for batch in group]
    if len(batches) == 1:
      return [traced(*batches)]
    padding = [batches[0]] * (_GROUP - len(batches))  # Convolutions may refuse empty ones.
    return traced_group(*batches, *padding)[: len(batches)]

  def features_of(clients):
    # No batch has two clients' examples.
    batches_of = [[x[i : i + _BATCH] for i in range(0, max(len(x), 1), _BATCH)] for x, _ in clients]
    batches = sum(batches_of, [])
    size = _GROUP if all(0 < len(batch) <= _SMALL for batch in batches) else 1
    groups = [batches[i : i + size] for i in range(0, len(batches), size)]
    # CPU cores share the groups: TensorFlow releases Python's lock.
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
      # A generator, so that a client's parts are freed once they are in one tensor.
      parts = (part for group in pool.map(of_group, groups) for part in group)
      return [
          (tf.concat(own, 0) if len(own) > 1 else own[0], y)
          for own, y in ([[next(parts) for _ in own], y] for own, (_, y) in zip(batches_of, clients))
      ]

  return features_of


class ClientData:
  """Maps participants to their datasets, and keeps these.

  Datasets are made when a client is first sampled. Datasets of features are made at once: they
  take longer, and all CPU cores make them together.
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
    clients, num = self._data.clients, len(self._data.clients)
    parts = [range(i, min(i + _CLIENTS, num)) for i in range(0, num, _CLIENTS)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      # The task's own clients are read in this thread alone.
      calls = (
          pool.submit(clients.features_of, [clients.examples[i] for i in part]) for part in parts
      )
      following = next(calls)
      for part in parts:
        made, following = following, next(calls, None)
        for client, examples in zip(part, made.result()):
          self._dataset(client, examples)
        if self._free_bytes < 0:
          return
        _malloc_trim(0)
        if part.stop % _CLIENTS_PER_LINE == 0 or part.stop == num:
          print(f'features: {part.stop:,} of {num:,} clients', file=sys.stderr, flush=True)

  def _dataset(self, client: int, examples: Sequence[np.ndarray]):
    """Returns a participant's dataset, and keeps it if there is room."""
    dataset = tf.data.Dataset.from_tensor_slices(tuple(examples))
    if self._tagged:
      # Dummies are below -n, and their tags below 0, so that a seed's noise does not depend on n.
      tag = client if client >= 0 else client + len(self._data.clients)
      dataset = fedsmp_tff.tag_client(tag, dataset)
    self._free_bytes -= sum(np.asarray(array).nbytes for array in examples)
    if self._free_bytes >= 0:
      self._datasets[client] = dataset
    return dataset
