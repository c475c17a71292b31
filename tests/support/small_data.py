"""Small files in the true formats of the data sets, for tests."""

import collections
import gzip
import pathlib
import sqlite3

import numpy as np
import scipy.io
import tensorflow as tf


def write_idx(path, array):
  header = bytes([0, 0, 8, array.ndim])
  sizes = np.array(array.shape, '>i4').tobytes()
  with gzip.open(path, 'wb') as file:
    file.write(header + sizes + array.tobytes())


def write_fashion_mnist(directory, num_train=60, num_test=20, seed=0):
  """Images whose label can be predicted: it is the place of four brighter rows."""
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  rng = np.random.default_rng(seed)
  parts = {}
  for part, num in (('train', num_train), ('t10k', num_test)):
    labels = rng.integers(0, 10, num).astype(np.uint8)
    images = rng.integers(0, 50, (num, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels):
      image[2 * label : 2 * label + 4] += 200
    write_idx(directory / f'{part}-images-idx3-ubyte.gz', images)
    write_idx(directory / f'{part}-labels-idx1-ubyte.gz', labels)
    parts[part] = images, labels
  return parts


def write_svhn(directory, sizes, seed=0):
  rng = np.random.default_rng(seed)
  parts = {}
  for part, num in sizes.items():
    images = rng.integers(0, 256, (32, 32, 3, num), np.uint8)
    labels = rng.integers(1, 11, (num, 1)).astype(np.uint8)
    path = pathlib.Path(directory) / f'{part}_32x32.mat'
    scipy.io.savemat(path, {'X': images, 'y': labels}, do_compression=True)
    parts[part] = images, labels
  return parts


def _write_sqlite(path, examples):
  """Writes a database of TFF's, of split -> client id -> list of dicts of `tf.train.Feature`s."""
  with sqlite3.connect(path) as connection:
    connection.execute(
        'CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)'
    )
    connection.execute(
        'CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)'
    )
    for split, clients in examples.items():
      for client, examples_of_client in clients.items():
        connection.execute(
            'INSERT INTO client_metadata VALUES (?, ?, ?)',
            (client, split, len(examples_of_client)),
        )
        for feature in examples_of_client:
          proto = tf.train.Example(features=tf.train.Features(feature=feature))
          connection.execute(
              'INSERT INTO examples VALUES (?, ?, ?)', (split, client, proto.SerializeToString())
          )
  connection.close()


def write_tff_shakespeare(cache_dir, snippets):
  """Writes `snippets`: split -> role -> list of bytes."""
  _write_sqlite(pathlib.Path(cache_dir) / 'shakespeare.sqlite', {
      split: {
          role: [
              {'snippets': tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))}
              for text in texts
          ]
          for role, texts in roles.items()
      }
      for split, roles in snippets.items()
  })


def write_tff_emnist(cache_dir, sizes, seed=0, change=lambda writer, pixels, label: None):
  """Writes `sizes`: split -> writer -> number of images; returns images and labels alike.

  `change` may change an image's pixels (a list of floats) and label (a list of one integer) before
  they are written.
  """
  rng = np.random.default_rng(seed)
  parts, examples = (collections.defaultdict(dict) for _ in range(2))
  for split, writers in sizes.items():
    for writer, num in writers.items():
      images, labels = rng.integers(0, 256, (num, 28, 28), np.uint8), rng.integers(0, 62, num)
      parts[split][writer] = images, labels
      for image, label in zip(images, labels):
        pixels, label = list(image.reshape(-1) / 255), [label]
        change(writer, pixels, label)
        examples[f'all_{split}'].setdefault(writer, []).append({
            'pixels': tf.train.Feature(float_list=tf.train.FloatList(value=pixels)),
            'label': tf.train.Feature(int64_list=tf.train.Int64List(value=label)),
        })
  _write_sqlite(pathlib.Path(cache_dir) / 'emnist_all.sqlite', examples)
  return parts


def assert_equal_data(data, expected):
  assert data.rows() == expected.rows() and data.split_digest == expected.split_digest
  for own, other in zip([*data.clients, data.test], [*expected.clients, expected.test]):
    for array, expected_array in zip(own, other):
      np.testing.assert_array_equal(array, expected_array)
      assert array.dtype == expected_array.dtype


def assert_labels_are_skewed(even, skewed):
  """Checks what a task's option `dirichlet`=0.1 changes."""
  assert 'Dirichlet(0.1)' in skewed.source and 'Dirichlet' not in even.source
  assert even.split_digest != skewed.split_digest


def assert_nobody_is_in_two_sets(data):
  """Clients, test set and public set are of people all different, and each client is one person."""
  clients = frozenset(data.client_ids)
  assert len(clients) == len(data.client_ids) == len(data.clients)
  sets = [clients, data.test_owners.ids]
  if data.public is not None:
    sets.append(data.public_owners.ids)
  assert all(sets)
  assert sum(map(len, sets)) == len(frozenset.union(*sets))
