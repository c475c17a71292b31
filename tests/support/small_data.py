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
  """Images whose label can be told: the brighter half of a row says it."""
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
    scipy.io.savemat(
        pathlib.Path(directory) / f'{part}_32x32.mat',
        {'X': images, 'y': labels},
        do_compression=True,
    )
    parts[part] = images, labels
  return parts


def _write_sqlite(path, examples):
  """`examples`: split -> client id -> list of `tf.train.Example`."""
  connection = sqlite3.connect(path)
  connection.execute(
      'CREATE TABLE examples (split_name TEXT, client_id TEXT,'
      ' serialized_example_proto BLOB)'
  )
  connection.execute(
      'CREATE TABLE client_metadata (client_id TEXT, split_name TEXT,'
      ' num_examples INTEGER)'
  )
  for split, clients in examples.items():
    for client, protos in clients.items():
      connection.execute(
          'INSERT INTO client_metadata VALUES (?, ?, ?)',
          (client, split, len(protos)),
      )
      connection.executemany(
          'INSERT INTO examples VALUES (?, ?, ?)',
          [(split, client, p.SerializeToString()) for p in protos],
      )
  connection.commit()
  connection.close()


def _bytes_feature(value):
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def write_tff_shakespeare(cache_dir, snippets):
  """`snippets`: split -> role -> list of bytes."""
  _write_sqlite(
      pathlib.Path(cache_dir) / 'shakespeare.sqlite',
      {
          split: {
              role: [
                  tf.train.Example(
                      features=tf.train.Features(
                          feature={'snippets': _bytes_feature(snippet)}
                      )
                  )
                  for snippet in texts
              ]
              for role, texts in roles.items()
          }
          for split, roles in snippets.items()
      },
  )


def write_tff_emnist(cache_dir, sizes, seed=0, change=lambda writer, pixels, label: None):
  """`sizes`: split -> writer -> number of images. Returns images and labels alike.

  `change` may change an image's pixels (a list of floats) and label (of one element)
  before they are written.
  """
  rng = np.random.default_rng(seed)
  made = collections.defaultdict(dict)
  examples = collections.defaultdict(dict)
  for split, writers in sizes.items():
    for writer, num in writers.items():
      images = rng.integers(0, 256, (num, 28, 28), np.uint8)
      labels = rng.integers(0, 62, num)
      made[split][writer] = images, labels
      for image, label in zip(images, labels):
        pixels, label = list(image.reshape(-1) / 255), [label]
        change(writer, pixels, label)
        feature = {
            'pixels': tf.train.Feature(float_list=tf.train.FloatList(value=pixels)),
            'label': tf.train.Feature(int64_list=tf.train.Int64List(value=label)),
        }
        examples[f'all_{split}'].setdefault(writer, []).append(
            tf.train.Example(features=tf.train.Features(feature=feature))
        )
  _write_sqlite(pathlib.Path(cache_dir) / 'emnist_all.sqlite', examples)
  return made




def assert_nobody_is_in_two_sets(data):
  """Clients, test set and public set are of people all different, and each client is one."""
  clients = frozenset(data.client_ids)
  assert len(clients) == len(data.client_ids) == len(data.clients)
  sets = [clients, data.test_owners.ids]
  if data.public is not None:
    sets.append(data.public_owners.ids)
  assert all(sets)
  assert sum(map(len, sets)) == len(frozenset.union(*sets))
