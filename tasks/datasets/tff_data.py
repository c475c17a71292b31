"""Reads TFF's downloadable data sets as plain arrays, a person each."""

from collections.abc import Callable, Iterator
import contextlib
import pathlib
import sqlite3
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from fedsmp_tff import errors as library_errors
from tasks import errors
from tasks.datasets import people
from tasks.datasets import task as task_lib

# What TFF raises for an SQLite file without its tables.
_FormatError = tff.simulation.datasets.sql_client_data.DatabaseFormatError


@contextlib.contextmanager
def loading(
    title: str, filename: str, cache_dir: Optional[str]
) -> Iterator[None]:
  """Turns what TFF's loaders raise into one sentence about the file they look for."""
  path = pathlib.Path(cache_dir or pathlib.Path.home() / '.tff') / filename
  try:
    yield
  except (OSError, sqlite3.Error, _FormatError, _ClientError, tf.errors.OpError) as error:
    remedy = (
        'delete it, so that it is downloaded again'
        if path.exists()
        else f'download {filename}.lzma of TFF\'s public data sets'
        f' (tff-datasets-public), unpack it to that path, or name its directory'
        ' with --data_dir'
    )
    raise errors.InputError(
        f'{title}: {path} is missing or can\'t be read ({library_errors.reason(error)}); {remedy}.'
    ) from None


class _ClientError(Exception):
  """A client's examples can't be read."""


def read_people(
    parts: tuple[tff.simulation.datasets.ClientData, tff.simulation.datasets.ClientData],
    to_examples: Callable[[list[Any]], task_lib.Examples],
) -> list[people.Person]:
  """Each client of a data set as a person, in the order of client ids.

  Within `loading`, what can't be read becomes a sentence that names the client: elements that
  TensorFlow can't parse, those at which `to_examples` raises a `ValueError`, and a client that
  is in one part alone.

  Args:
    parts: The data set's own train and test parts, which split each client's examples.
    to_examples: Makes examples of a client's elements.
  """
  ids = [set(part.client_ids) for part in parts]
  for client in sorted(ids[0] ^ ids[1]):
    raise _ClientError(f'client {client!r}: it is in one of the train and test parts alone')
  found = []
  for client in tqdm.tqdm(parts[0].client_ids, desc='reading clients', disable=None):
    try:
      train, test = (
          to_examples(list(part.create_tf_dataset_for_client(client).as_numpy_iterator()))
          for part in parts
      )
    except (ValueError, tf.errors.OpError) as error:
      raise _ClientError(f'client {client!r}: {library_errors.reason(error)}') from None
    found.append(people.Person(client, train, test))
  return found
