"""Tests of features as data: computed once per client, and what rounds make of them."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
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


def _body(data):
  model = _model()
  weights = tff.learning.models.ModelWeights(*model.initial_weights)
  return features.split(model, weights, data.public, lambda y: tf.ones_like(y, tf.bool))


class TestExecution:

  def test_clients_are_computed_when_they_are_first_sampled(self):
    data, seen = _data(), []
    body, _ = _body(data)

    def noted(x):
      tf.py_function(lambda num: seen.append(int(num)), [tf.shape(x)[0]], [])
      return body(x)

    found = features.of_data(data, noted, _model().input_spec[0])
    assert seen == [250, 50, 40]  # Test and public set.
    client_data = features.ClientData(found, tagged=False)
    for client in (1, 1, 0):
      x, y = next(iter(client_data(client).batch(20)))
      np.testing.assert_array_equal(x, body(tf.constant(data.clients[client][0])))
      np.testing.assert_array_equal(y, data.clients[client][1])
      assert x.dtype == tf.float16
    assert seen == [250, 50, 40, 10, 7] and len(found.clients) == 3
    for one, other in ((found.test, data.test), (found.public, data.public)):
      assert one[0].shape == (len(other[0]), 6) and one[1] is other[1]

  def test_above_the_limit_they_are_computed_again(self, monkeypatch):
    monkeypatch.setattr(features, 'KEPT_BYTES', 10 * (16 + 4))
    client_data = features.ClientData(_data(), tagged=False)
    assert client_data(1) is client_data(1) and client_data(0) is not client_data(0)

  def test_rounds_on_features_are_rounds_through_the_frozen_body(self):
    data = _data()
    body, head = _body(data)
    on_features = _model().head()

    @tf.function
    def predict_on_batch(weights, x, training):
      return on_features.predict_on_batch(weights, body(x), training=training)

    through_body = tff.learning.models.FunctionalModel(
        initial_weights=(head.trainable, ()), predict_on_batch_fn=predict_on_batch,
        loss_fn=on_features.loss, input_spec=_model().input_spec,
    )
    on_features = tff.learning.models.FunctionalModel(
        initial_weights=(head.trainable, ()), predict_on_batch_fn=on_features.predict_on_batch,
        loss_fn=on_features.loss, input_spec=on_features.input_spec,
    )
    found = features.of_data(data, body, _model().input_spec[0])
    trained = []
    for model, examples in ((through_body, data), (on_features, found)):
      process = fedsmp_tff.build_fed_smp(
          model,
          fedsmp_tff.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), 4, epochs=2),
          fedsmp_tff.FedSmpFactory(
              fedsmp_tff.TopK(0.5, public_examples=examples.public),
              fedsmp_tff.Mechanism(3, clipping_norm=0.1, noise_multiplier=1.0),
          ),
          seed=5,
      )
      client_data, state = features.ClientData(examples, tagged=True), process.initialize()
      for _ in range(3):
        state = process.next(state, [client_data(client) for client in range(3)]).state
      trained.append(process.get_model_weights(state).trainable)
    for one, other, start in zip(*trained, head.trainable):
      np.testing.assert_array_equal(one, other)
      assert not np.array_equal(one, start)


class TestClientData:

  @pytest.mark.parametrize('tagged', [False, True])
  def test_noise_only_participants_hold_nothing(self, tagged):
    clients = [(np.ones((3, 2)), np.arange(3)), (np.zeros((1, 2)), np.arange(1))]
    data = task_lib.TaskData(clients, clients[0], None, 'made up')
    client_data = features.ClientData(data, tagged)
    ids = []
    for client, size in ((0, 3), (1, 1), (-1, 0), (-2, 0)):
      dataset = client_data(client)
      if tagged:
        ids.append(int(next(iter(dataset['client_id']))))
        dataset = dataset['examples']
      assert len(list(dataset)) == size
      assert dataset.element_spec[0].shape == [2]
    # Seeded noise derives from these: no two may be alike.
    assert ids == ([0, 1, -1, -2] if tagged else [])
    # Made once: new datasets for every round cost memory.
    assert client_data(-1) is client_data(-1)
