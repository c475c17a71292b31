"""Tests of features as data: computed once per client, and rounds that train on them."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.datasets import task as task_lib
from tasks.models import cnn
from tasks.models import initializers
from tasks.training import features


def _model():
  return cnn.cnn((4, 4, 1), (2,), (6,), 4, initializers.INITIALIZERS['keras'](3))


def _examples(num, seed):
  rng = np.random.default_rng(seed)
  x = rng.integers(0, 256, (num, 4, 4, 1)).astype(np.uint8)
  return x, rng.integers(0, 4, num).astype(np.int32)


def _data():
  clients = [_examples(num, seed) for seed, num in enumerate((7, 10, 1))]
  return task_lib.TaskData(clients, _examples(300, 8), _examples(40, 9), 'made up')


def _split(data):
  model = _model()
  weights = tff.learning.models.ModelWeights(*model.initial_weights)
  return features.split(model, weights, data.public, lambda y: tf.ones_like(y, tf.bool))


def _assert_same(x, other):
  """Features are int8, and the last bits of float32 may decide how one in 100 is rounded."""
  assert x.dtype == other.dtype == tf.int8
  apart = np.abs(x.numpy().astype(int) - other.numpy())
  assert apart.max() <= 1 and apart.mean() <= 0.01


class TestExecution:

  @pytest.mark.parametrize('kept, used', [(0, [7, 10, 10, 10, 7]), (10**6, [7, 10, 1])])
  def test_features_are_computed_once_if_there_is_room(self, kept, used, monkeypatch):
    monkeypatch.setattr(features, 'KEPT_BYTES', kept)
    # Parts of one client, each computed while the datasets of the part before are made.
    monkeypatch.setattr(features, '_CLIENTS', 1)
    monkeypatch.setattr(features, '_GROUP', 1)
    data, sizes = _data(), []
    body, _ = _split(data)

    def noted(x):
      tf.py_function(lambda num: sizes.append(int(num)), [tf.shape(x)[0]], [])
      return body(x)

    on_features = features.of_data(data, noted, _model().input_spec[0])
    parts = [40, 44, 64, 64, 64, 64]  # Public and test set.
    assert sorted(sizes) == parts
    client_data = features.ClientData(on_features, tagged=False)
    for client in (1, 1, 0):
      x, y = next(iter(client_data(client).batch(20)))
      _assert_same(x, body(tf.constant(data.clients[client][0])))
      np.testing.assert_array_equal(y, data.clients[client][1])
    assert sorted(sizes) == sorted([*parts, *used]) and len(on_features.clients) == 3
    for name, num in (('test', 300), ('public', 40)):
      x, y = getattr(on_features, name)
      assert x.shape == (num, 6) and y is getattr(data, name)[1]
      _assert_same(x, body(tf.constant(getattr(data, name)[0])))

  def test_features_of_a_client_depend_on_no_other_client(self):
    # Small clients share a call; two large ones do not.
    sizes = [3, 0, 16, *range(1, 16), 7, 17, 260]
    clients = [_examples(num, seed) for seed, num in enumerate(sizes)]
    data = dataclasses.replace(_data(), clients=clients)
    body, _ = _split(data)
    for num in (1, 5, 18, len(sizes)):
      some = dataclasses.replace(data, clients=clients[:num])
      on_features = features.of_data(some, body, _model().input_spec[0]).clients
      together = on_features.features_of(clients[:num])
      for client, (x, y) in enumerate(together):
        own_x, own_y = on_features[client]
        np.testing.assert_array_equal(x, own_x)
        assert len(x) == len(y) == sizes[client] and y is own_y is clients[client][1]


class TestClientData:

  @pytest.mark.parametrize('tagged', [False, True])
  def test_dummy_participants_hold_nothing(self, tagged):
    client_data = features.ClientData(_data(), tagged)
    ids = []
    for client, size in ((0, 7), (2, 1), (-4, 0), (-5, 0)):
      dataset = client_data(client)
      if tagged:
        ids.append(int(next(iter(dataset['client_id']))))
        dataset = dataset['examples']
      assert len(list(dataset)) == size
      assert dataset.element_spec[0].shape == [4, 4, 1]
    # Seeded noise derives from these: no two may be alike.
    assert ids == ([0, 2, -1, -2] if tagged else [])

  def test_datasets_are_made_once_up_to_the_limit(self, monkeypatch):
    monkeypatch.setattr(features, 'KEPT_BYTES', 10 * (16 + 4))
    client_data = features.ClientData(_data(), tagged=False)
    assert client_data(-1) is client_data(-1) and client_data(1) is client_data(1)
    assert client_data(0) is not client_data(0)
