"""`cohort`: the datasets of a round's participants, for `process.next`."""

from collections.abc import Callable, Iterable, Sequence
import functools
import operator
from typing import Any, Union

import tensorflow as tf
import tensorflow_federated as tff

# Sets of clients whose datasets stay in memory, and clients whose empty datasets do.
_MAX_KEPT = 4

ClientDatasets = Union[
    tff.simulation.datasets.ClientData, Sequence[tf.data.Dataset], Callable[[int], Any]
]


def cohort(participants: Iterable[int], client_data: ClientDatasets) -> list[Any]:
  """Returns the dataset of each participant, in order; dummies have an empty one.

  Datasets of a `ClientData` are made when a client is first sampled, and kept, because memory grows
  in TFF if each round makes new ones. All dummies share one dataset, with the `element_spec` of
  client 0's.

  Args:
    participants: Numbers of the participants, from `Sampler.sample`: clients from 0 to n - 1, and
      dummies below -n.
    client_data: The data of all n clients: a list of datasets, or a `ClientData`, in which client i
      is `client_ids[i]`; or a function from a participant's number, also a dummy's, to its data.

  Raises:
    TypeError: If `client_data` is something else.
    ValueError: If a client participates twice, if `participants` are of a population of another
      size, or if two clients of a `ClientData` have one id: epsilon counts a client once.
  """
  numbers = [operator.index(participant) for participant in participants]
  sampled = [number for number in numbers if number >= 0]
  if len(set(sampled)) < len(sampled):
    raise ValueError(
        f'`participants` has {len(sampled)} clients, but {len(set(sampled))} different ones, and'
        ' epsilon counts a client once in a round. Sample without replacement.'
    )
  if isinstance(client_data, tff.simulation.datasets.ClientData):
    clients = _kept_clients(client_data)
  elif isinstance(client_data, Sequence):
    clients = client_data
  elif callable(client_data):
    return [client_data(number) for number in numbers]
  else:
    raise TypeError(
        '`client_data` must be a `tff.simulation.datasets.ClientData`, a list with the dataset of'
        f' each client, or a function. Found {type(client_data).__name__}.'
    )
  for number in numbers:
    # Dummies are below -n. A number in [-n, -1] was drawn for a smaller population, and would index
    # the list from its end.
    if not (0 <= number < len(clients) or number < -len(clients)):
      raise ValueError(
          f'`client_data` has {len(clients)} clients, but participant {number} is of another'
          ' population. Sample with the `population` of `client_data`.'
      )
  return [clients[number] if number >= 0 else _empty(clients[0]) for number in numbers]


class _Clients(Sequence):
  """The datasets of a `ClientData`, each made once."""

  def __init__(self, client_data: tff.simulation.datasets.ClientData):
    self._client_data = client_data
    self._ids = list(client_data.client_ids)
    if len(set(self._ids)) < len(self._ids):
      raise ValueError(
          f'`client_data.client_ids` has {len(self._ids)} ids, but {len(set(self._ids))} different'
          ' ones, and epsilon counts a client once. Give each client one id.'
      )
    self._datasets = {}

  def __len__(self) -> int:
    return len(self._ids)

  def __getitem__(self, number: int) -> tf.data.Dataset:
    if number not in self._datasets:
      client_id = self._ids[number]
      self._datasets[number] = self._client_data.create_tf_dataset_for_client(client_id)
    return self._datasets[number]


_kept_clients = functools.lru_cache(_MAX_KEPT)(_Clients)


@functools.lru_cache(_MAX_KEPT)
def _empty(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Returns a dataset of the same `element_spec` without elements."""
  return dataset.take(0)
