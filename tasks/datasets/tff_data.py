"""Reads TFF's downloadable data sets as plain arrays per person."""

from collections.abc import Callable
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

# TFF raises this for an SQLite file without its tables, this module for a client's bad examples.
_FormatError = tff.simulation.datasets.sql_client_data.DatabaseFormatError


def read_people(
    load_data: Callable[..., tuple[tff.simulation.datasets.ClientData, ...]], filename: str,
    directory: Optional[str], to_examples: Callable[[list[Any]], task_lib.Examples],
) -> list[people.Person]:
  """Returns each client of a data set as a person, in the order of client ids.

  Args:
    load_data: TFF's loader: returns the train and the test part of all clients from `cache_dir`.
    filename: Name of the file in which TFF keeps the data.
    directory: Directory of the file; None: TFF's own.
    to_examples: Makes examples of a client's elements; raises a `ValueError` for bad elements.

  Raises:
    InputError: If the file is missing or can't be read; the text names the client at fault.
  """
  try:
    train, test = load_data(cache_dir=directory)
    for client in sorted(set(train.client_ids) ^ set(test.client_ids)):
      raise _FormatError(f'client {client!r}: it is in only one of the train and test parts')
    return [
        _read_person(client, (train, test), to_examples)
        for client in tqdm.tqdm(train.client_ids, desc='reading clients', disable=None)
    ]
  except (OSError, sqlite3.Error, _FormatError, tf.errors.OpError) as error:
    path = pathlib.Path(directory or pathlib.Path.home() / '.tff') / filename
    remedy = (
        'Delete it, so that it is downloaded again'
        if path.exists()
        else f'Download {filename}.lzma of TFF\'s public data sets (tff-datasets-public), unpack it'
        ' to that path, or name its directory with --data_dir'
    )
    raise errors.InputError(
        f'{path} is missing or can\'t be read ({library_errors.reason(error)}). {remedy}.'
    ) from None


def _read_person(client, parts, to_examples):
  try:
    return people.Person(client, *(
        to_examples(list(part.create_tf_dataset_for_client(client).as_numpy_iterator()))
        for part in parts
    ))
  except (ValueError, tf.errors.OpError) as error:
    raise _FormatError(f'client {client!r}: {library_errors.reason(error)}') from None
