"""Tests of the paper's models: sizes, and Keras as the independent reading."""

import numpy as np
import pytest
import tensorflow as tf

from tasks import datasets
from tasks.models import cnn
from tasks.models import initializers
from tasks.models import lstm
from tasks.models import rnn

_layers = tf.keras.layers
_initializer = initializers.KerasInitializer


class TestComputation:

  @pytest.mark.parametrize('task, parameters', [
      ('fashion_mnist', 1_663_370),
      ('svhn', 3_431_754),
      ('shakespeare', 820_522),
      # The Fashion-MNIST CNN with 52 more classes of 512 weights and a bias.
      ('emnist', 1_663_370 + 52 * 513),
  ])
  def test_models_have_the_stated_parameter_counts(self, task, parameters):
    task = datasets.TASKS[task]
    model = task.build_model(task.options and task.options(), _initializer(0))
    assert sum(map(np.size, model.initial_weights[0])) == parameters


class TestExecution:

  @pytest.mark.parametrize('moments', [None, (0.3, 0.2)])
  def test_cnn_equals_keras(self, moments):
    model = cnn.cnn((11, 9, 2), (3, 4), (7, 6), 5, _initializer(0), moments)
    keras_model = tf.keras.Sequential([
        _layers.InputLayer((11, 9, 2)),
        _layers.Conv2D(3, 5, padding='same'), _layers.MaxPool2D(padding='same'), _layers.ReLU(),
        _layers.Conv2D(4, 5, padding='same'), _layers.MaxPool2D(padding='same'), _layers.ReLU(),
        _layers.Flatten(),
        _layers.Dense(7, 'relu'), _layers.Dense(6, 'relu'), _layers.Dense(5),
    ])
    keras_model.set_weights(model.initial_weights[0])
    images = np.random.default_rng(0).integers(0, 256, (4, 11, 9, 2), np.uint8)
    mean, stddev = moments or (0, 1)
    np.testing.assert_allclose(
        model.predict_on_batch(model.initial_weights, images),
        keras_model((images / np.float32(255) - np.float32(mean)) / np.float32(stddev)),
        atol=1e-5,
    )

  @pytest.mark.parametrize('use_keras', [False, True])
  def test_rnn_equals_keras(self, use_keras):
    model = rnn.character_rnn(12, 3, (5, 4), 7, 0, _initializer(0), use_keras)
    keras_model = tf.keras.Sequential([
        _layers.Embedding(12, 3, input_length=7),
        _layers.LSTM(5, return_sequences=True), _layers.LSTM(4, return_sequences=True),
        _layers.Dense(12),
    ])
    keras_model.set_weights(model.initial_weights[0])
    characters, labels = np.random.default_rng(0).integers(0, 12, (2, 6, 7), np.int32)
    output = model.predict_on_batch(model.initial_weights, characters)
    np.testing.assert_allclose(output, keras_model(characters), atol=1e-5)
    assert np.any(labels == 0)
    keras_loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    without_padding = keras_loss(labels[labels != 0], output[labels != 0])
    assert float(model.loss(output, labels)) == pytest.approx(float(without_padding), rel=1e-5)
    assert float(model.loss(output, np.zeros_like(labels))) == 0

  @pytest.mark.parametrize('layer', [lstm.lstm, rnn._keras_lstm])
  def test_lstm_gradients_equal_keras(self, layer):
    steps, batch, size, units = 9, 3, 4, 6
    rng = np.random.default_rng(0)
    x, kernel, recurrent, bias, upstream = (
        tf.constant(rng.normal(size=shape), tf.float32)
        for shape in (
            (steps, batch, size), (size, 4 * units), (units, 4 * units), (4 * units,),
            (steps, batch, units),
        )
    )
    keras_layer = _layers.LSTM(units, return_sequences=True, time_major=True)
    keras_layer.build((steps, batch, size))
    keras_layer.set_weights([kernel, recurrent, bias])
    with tf.GradientTape(persistent=True) as tape:
      tape.watch([x, kernel, recurrent, bias])
      output = tf.function(layer)(x, kernel, recurrent, bias)  # Traced, as in a run.
      expected = keras_layer(x)
    gradients = tape.gradient(output, [x, kernel, recurrent, bias], upstream)
    keras_gradients = tape.gradient(expected, [x, *keras_layer.trainable_weights], upstream)
    for actual, value in zip([output, *gradients], [expected, *keras_gradients]):
      np.testing.assert_allclose(actual, value, atol=1e-4, rtol=1e-4)
