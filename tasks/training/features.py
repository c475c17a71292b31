"""Data as the features of a frozen body: the public and the test set at once, clients when used."""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tasks.datasets import task as task_lib
from tasks.models import split as split_lib

# A fixed number, so that last bits of features depend on no other client's examples.
_BATCH = 250
# Of clients in memory; those of others are computed again at each visit.
KEPT_BYTES = 4 * 10**9


def of_data(
    data: task_lib.TaskData, body: Callable[[tf.Tensor], tf.Tensor], spec: tf.TensorSpec
) -> task_lib.TaskData:
  """Returns data whose x are features.

  Args:
    data: The data.
    body: Maps x [batch, ...] to features.
    spec: Of x.
  """
  of_examples = _function(lambda x: body(x), spec)
  return dataclasses.replace(
      data,
      clients=_Clients(data.clients, of_examples),
      test=of_examples(data.test),
      public=of_examples(data.public),
  )


def split(
    model: split_lib.SplitModel,
    weights: tff.learning.models.ModelWeights,
    public: task_lib.Examples,
    is_scored: Callable[[tf.Tensor], tf.Tensor],
) -> tuple[split_lib.FrozenBody, tff.learning.models.ModelWeights]:
  """Returns the frozen body and the initial weights of the head that are a model's function.

  Args:
    model: The model.
    weights: Its pre-trained weights.
    public: The public examples.
    is_scored: As `Task.is_scored`: features of other labels, such as padding, do not count.

  Raises:
    ValueError: If the features of the public examples do not differ.
  """
  *of_body, kernel, bias = weights.trainable
  found, labels = _function(lambda x: model.body(of_body, x), model.input_spec[0])(public)
  whitening = split_lib.whitening(found[np.asarray(is_scored(tf.constant(labels)))])
  body = split_lib.FrozenBody(model.body, tuple(of_body), *whitening)
  return body, body.head_of(kernel, bias)


def _function(
    body: Callable[[tf.Tensor], tf.Tensor], spec: tf.TensorSpec
) -> Callable[[task_lib.Examples], task_lib.Examples]:
  traced = tf.function(body, input_signature=[spec], autograph=False)

  def of_examples(examples):
    x, y = examples
    batches = [x[i : i + _BATCH] for i in range(0, max(len(x), 1), _BATCH)]
    return np.concatenate([traced(tf.constant(batch, spec.dtype)) for batch in batches]), y

  return of_examples


class _Clients(Sequence):
  """Clients' features, computed at each access: `ClientData` keeps them."""

  def __init__(
      self,
      clients: Sequence[task_lib.Examples],
      of_examples: Callable[[task_lib.Examples], task_lib.Examples],
  ):
    self._clients = clients
    self._of_examples = of_examples

  def __len__(self) -> int:
    return len(self._clients)

  def __getitem__(self, client: int) -> task_lib.Examples:
    return self._of_examples(self._clients[client])


class ClientData:
  """Maps participants to their datasets, each made when it is first sampled, and kept."""

  def __init__(self, data: task_lib.TaskData, tagged: bool):
    self._data = data
    self._tagged = tagged
    self._datasets = {}
    self._room = KEPT_BYTES

  def __call__(self, client: int):
    if client not in self._datasets:
      if client < 0:  # Noise alone.
        examples = tuple(array[:0] for array in self._data.test)
      else:
        examples = self._data.clients[client]
      dataset = tf.data.Dataset.from_tensor_slices(examples)
      if self._tagged:
        dataset = fedsmp_tff.tag_client(client, dataset)
      self._room -= sum(array.nbytes for array in examples)
      if self._room < 0:
        return dataset
      self._datasets[client] = dataset
    return self._datasets[client]
