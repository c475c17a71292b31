"""Tests of the paper's models: sizes, and Keras as the independent reading."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tasks import datasets
from tasks.models import cnn
from tasks.models import initializers
from tasks.models import lstm
from tasks.models import pooling
from tasks.models import rnn

_initializer = initializers.KerasInitializer


def _build(name, seed=0):
  task = datasets.TASKS[name]
  return task.build_model(task.options and task.options(), _initializer(seed))


def _size(model):
  return sum(np.size(w) for w in model.initial_weights[0])


class TestComputation:

  @pytest.mark.parametrize(
      'task, parameters',
      [
          ('fashion_mnist', 1_663_370),
          ('svhn', 3_431_754),
          ('shakespeare', 820_522),
          # The Fashion-MNIST CNN with 52 more classes of 512 weights and a bias.
          ('emnist', 1_663_370 + 52 * 513),
      ],
  )
  def test_parameter_counts(self, task, parameters):
    assert _size(_build(task)) == parameters

  def test_initial_weights_follow_the_seed(self):
    one, again, other = (_build('shakespeare', s).initial_weights[0] for s in (1, 1, 2))
    np.testing.assert_array_equal(one[1], again[1])
    assert not np.array_equal(one[1], other[1])


class TestExecution:

  def test_cnn_equals_keras(self):
    model = cnn.cnn((11, 9, 2), (3, 4), (7, 6), 5, initializer=_initializer(0))
    keras_model = tf.keras.Sequential([
        tf.keras.layers.InputLayer((11, 9, 2)),
        tf.keras.layers.Conv2D(3, 5, padding='same'),
        tf.keras.layers.MaxPool2D(padding='same'),
        tf.keras.layers.ReLU(),
        tf.keras.layers.Conv2D(4, 5, padding='same'),
        tf.keras.layers.MaxPool2D(padding='same'),
        tf.keras.layers.ReLU(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(7, 'relu'),
        tf.keras.layers.Dense(6, 'relu'),
        tf.keras.layers.Dense(5),
    ])
    keras_model.set_weights(model.initial_weights[0])
    images = np.random.default_rng(0).integers(0, 256, (4, 11, 9, 2), np.uint8)
    np.testing.assert_allclose(
        model.predict_on_batch(model.initial_weights, images),
        keras_model(images / np.float32(255)),
        atol=1e-5,
    )

  def test_rnn_equals_keras(self):
    model = rnn.character_rnn(12, 3, (5, 4), 7, padding=0, initializer=_initializer(0))
    keras_model = tf.keras.Sequential([
        tf.keras.layers.Embedding(12, 3, input_length=7),
        tf.keras.layers.LSTM(5, return_sequences=True),
        tf.keras.layers.LSTM(4, return_sequences=True),
        tf.keras.layers.Dense(12),
    ])
    keras_model.set_weights(model.initial_weights[0])
    characters = np.random.default_rng(0).integers(0, 12, (6, 7), np.int32)
    labels = np.random.default_rng(1).integers(0, 12, (6, 7), np.int32)
    output = model.predict_on_batch(model.initial_weights, characters)
    np.testing.assert_allclose(output, keras_model(characters), atol=1e-5)
    assert np.any(labels == 0)
    keras_loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    real = keras_loss(labels[labels != 0], output[labels != 0])
    assert float(model.loss(output, labels)) == pytest.approx(float(real), rel=1e-5)
    assert float(model.loss(output, np.zeros_like(labels))) == 0

  def test_rnn_of_keras_layers_trains_as_the_unrolled_one(self):
    rng = np.random.default_rng(0)
    examples = tf.data.Dataset.from_tensor_slices(
        tuple(rng.integers(0, 12, (2, 6, 7), np.int32))
    )
    trained = []
    for use_keras in (False, True):
      model = rnn.character_rnn(12, 3, (5, 4), 7, 0, initializer=_initializer(0), use_keras=use_keras)
      process = fedsmp_tff.build_fed_smp(
          model,
          fedsmp_tff.LocalTraining(
              tff.learning.optimizers.build_sgdm(0.5, 0.9), 2, epochs=2
          ),
          fedsmp_tff.FedSmpFactory(fedsmp_tff.Dense(), fedsmp_tff.Mechanism(1)),
          seed=1,
      )
      state = process.next(
          process.initialize(), [fedsmp_tff.tag_client(0, examples)]
      ).state
      trained.append(state.global_model_weights.trainable)
    for one, other, initial in zip(*trained, model.initial_weights[0]):
      assert np.any(np.abs(one - initial) > 1e-3)
      np.testing.assert_allclose(one, other, atol=1e-5)

  @pytest.mark.parametrize('shape', [(3, 8, 6, 5), (2, 7, 6, 1), (2, 4, 5, 3)])
  @pytest.mark.parametrize('ties', [False, True])
  def test_pooling_equals_tensorflows(self, shape, ties):
    rng = np.random.default_rng(0)
    # Of values 0, 1 and 2 most windows have several largest.
    images = rng.integers(0, 3, shape) if ties else rng.normal(size=shape)
    images = tf.constant(images, tf.float32)
    results = []
    for pool in (
        pooling.max_pool_2x2, lambda x: tf.nn.max_pool2d(x, 2, 2, 'SAME')
    ):
      with tf.GradientTape() as tape:
        tape.watch(images)
        pooled = pool(images)
      upstream = tf.reshape(
          tf.range(1, tf.size(pooled, tf.int32) + 1), pooled.shape
      )
      upstream = tf.cast(upstream, tf.float32)
      results.append((pooled, tape.gradient(pooled, images, upstream)))
    for ours, theirs in zip(*results):
      np.testing.assert_array_equal(ours, theirs)

  def test_lstm_gradients_equal_keras(self):
    rng = np.random.default_rng(0)
    steps, batch, inputs, units = 9, 3, 4, 6
    x, kernel, recurrent, bias, upstream = (
        tf.constant(rng.normal(size=shape), tf.float32)
        for shape in (
            (steps, batch, inputs), (inputs, 4 * units), (units, 4 * units),
            (4 * units,), (steps, batch, units),
        )
    )
    with tf.GradientTape() as tape:
      tape.watch([x, kernel, recurrent, bias])
      hidden = lstm.lstm(x, kernel, recurrent, bias)
      loss = tf.reduce_sum(hidden * upstream)
    ours = tape.gradient(loss, [x, kernel, recurrent, bias])
    layer = tf.keras.layers.LSTM(units, return_sequences=True)
    layer.build((batch, steps, inputs))
    layer.set_weights([kernel, recurrent, bias])
    with tf.GradientTape() as tape:
      tape.watch(x)
      keras_hidden = tf.transpose(layer(tf.transpose(x, [1, 0, 2])), [1, 0, 2])
      loss = tf.reduce_sum(keras_hidden * upstream)
    theirs = tape.gradient(loss, [x, *layer.trainable_weights])
    np.testing.assert_allclose(hidden, keras_hidden, atol=1e-5)
    for our, their in zip(ours, theirs):
      np.testing.assert_allclose(our, their, atol=1e-4, rtol=1e-4)
