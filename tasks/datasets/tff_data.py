"""TFF's downloadable data sets as plain arrays, one pair a client."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import pathlib
import sqlite3
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from fedsmp_tff import errors as library_errors
from tasks import errors
from tasks.datasets import task as task_lib

# What TFF raises for an SQLite file without its tables.
_FormatError = tff.simulation.datasets.sql_client_data.DatabaseFormatError


@contextlib.contextmanager
def loading(
    title: str, filename: str, cache_dir: Optional[str], flag: str
) -> Iterator[None]:
  """Turns what TFF's loaders raise into one sentence about the file they look for."""
  path = pathlib.Path(cache_dir or pathlib.Path.home() / '.tff') / filename
  try:
    yield
  except (OSError, sqlite3.Error, _FormatError, _ClientError, tf.errors.OpError) as error:
    remedy = (
        'delete it, so that it is downloaded anew'
        if path.exists()
        else f'download {filename}.lzma of TFF\'s public data sets'
        f' (tff-datasets-public), unpack it to that path, or name its directory'
        f' with --{flag}'
    )
    raise errors.InputError(
        f'{title}: {path} could not be had or read ({library_errors.reason(error)}); {remedy}.'
    ) from None


class _ClientError(Exception):
  """A client's examples can't be read."""


def examples_by_client(
    data: tff.simulation.datasets.ClientData,
    to_examples: Callable[[list[Any]], task_lib.Examples],
) -> list[task_lib.Examples]:
  """Each client's elements through `to_examples`, in the order of client ids.

  Within `loading`, what can't be read becomes a sentence that names the client:
  elements that TensorFlow can't parse, and those at which `to_examples` raises a
  `ValueError`.
  """
  examples = []
  for client in tqdm.tqdm(data.client_ids, desc='reading clients', disable=None):
    dataset = data.create_tf_dataset_for_client(client)
    try:
      examples.append(to_examples(list(dataset.as_numpy_iterator())))
    except (ValueError, tf.errors.OpError) as error:
      raise _ClientError(f'client {client!r}: {library_errors.reason(error)}') from None
  return examples


def take_public_of_clients(
    clients: Sequence[task_lib.Examples],
    num_public: int,
    rng: np.random.Generator,
) -> tuple[list[task_lib.Examples], Optional[task_lib.Examples]]:
  """Takes random examples out of all clients' for the server's public set.

  Args:
    clients: Every client's examples.
    num_public: How many to take.
    rng: Chooses them.

  Returns:
    The clients with what is left to them (a client may end up empty), and the
    public examples, None if `num_public` is 0.

  Raises:
    InputError: If there are not that many.
  """
  if not num_public:
    return list(clients), None
  sizes = [len(x) for x, _ in clients]
  task_lib.check_num_public(num_public, sum(sizes))
  chosen = np.zeros(sum(sizes), bool)
  chosen[rng.choice(len(chosen), num_public, replace=False)] = True
  masks = np.split(chosen, np.cumsum(sizes)[:-1])
  left = [(x[~mask], y[~mask]) for (x, y), mask in zip(clients, masks)]
  taken = [(x[mask], y[mask]) for (x, y), mask in zip(clients, masks)]
  return left, tuple(map(np.concatenate, zip(*taken)))
