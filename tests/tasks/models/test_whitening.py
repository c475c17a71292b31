"""Tests of the last layer in whitened coordinates, against a NumPy reading of its formulas."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import cnn
from tasks.models import initializers
from tasks.models import rnn
from tasks.models import whitening

_FEATURES, _CLASSES = 6, 4


def _model():
  return cnn.cnn((4, 4, 1), (2,), (_FEATURES,), _CLASSES, initializers.INITIALIZERS['keras'](3))


def _weights(model):
  trainable, non_trainable = model.initial_weights
  return tff.learning.models.ModelWeights(tuple(map(np.asarray, trainable)), non_trainable)


def _examples(num, seed):
  rng = np.random.default_rng(seed)
  x = rng.integers(0, 256, (num, 4, 4, 1)).astype(np.uint8)
  return x, rng.integers(0, _CLASSES, num).astype(np.int32)


def _all(y):
  return tf.ones_like(y, tf.bool)


def _features(weights, x):
  """What the last layer of `_model` sees, from the definition of the layers before."""
  kernel, bias, dense, constant, *_ = weights.trainable
  out = tf.nn.conv2d(tf.cast(x, tf.float32) / 255, kernel, 1, 'SAME') + bias
  out = tf.nn.relu(tf.nn.max_pool2d(out, 2, 2, 'SAME'))
  return np.maximum(np.reshape(out, [len(x), -1]) @ dense + constant, 0)


def _logits(model, weights, x):
  return model.predict_on_batch((weights.trainable, weights.non_trainable), tf.constant(x), training=False)


class TestComputation:

  def test_at_first_the_same_function_to_the_last_bit(self):
    model = _model()
    white = whitening.whitened(model)
    x, _ = _examples(20, seed=1)
    np.testing.assert_array_equal(
        _logits(white, _weights(white), x), _logits(model, _weights(model), x)
    )

  def test_refuses_a_model_that_does_not_end_in_a_dense_layer(self):
    model = _model()
    trainable, _ = model.initial_weights
    headless = tff.learning.models.FunctionalModel(
        initial_weights=(trainable[:-1], ()), predict_on_batch_fn=model.predict_on_batch,
        loss_fn=model.loss, input_spec=model.input_spec,
    )
    with pytest.raises(ValueError, match='must end in a dense layer'):
      whitening.whitened(headless)


class TestExecution:

  def test_the_same_function_with_white_features(self):
    model, (x, y) = _model(), _examples(600, seed=1)
    weights = _weights(model)
    fitted = whitening.fitted(model, weights, (x, y), _all)
    others, _ = _examples(50, seed=2)
    np.testing.assert_allclose(
        _logits(whitening.whitened(model), fitted, others), _logits(model, weights, others),
        atol=1e-4,
    )
    features = _features(weights, x)
    matrix, mean = fitted.non_trainable
    np.testing.assert_allclose(mean, features.mean(0), rtol=1e-4)
    covariance = np.cov(features.T, bias=True)
    ridge = 0.03 * np.trace(covariance) / _FEATURES
    np.testing.assert_allclose(
        matrix @ (covariance + ridge * np.eye(_FEATURES)) @ matrix.T, np.eye(_FEATURES), atol=1e-3
    )
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-5)
    # Only the last layer's weights differ.
    for one, other in zip(fitted.trainable[:-2], weights.trainable[:-2]):
      np.testing.assert_array_equal(one, other)

  def test_plain_weights_are_the_model_s_own(self):
    model, examples = _model(), _examples(300, seed=1)
    weights = _weights(model)
    fitted = whitening.fitted(model, weights, examples, _all)
    back = whitening.plain(fitted)
    assert back.non_trainable == ()
    for one, other in zip(back.trainable, weights.trainable):
      np.testing.assert_allclose(one, other, atol=1e-5)
    # After steps too: the whitened function is that of its plain weights.
    moved = tff.learning.models.ModelWeights(
        tuple(weight + 0.1 for weight in fitted.trainable), fitted.non_trainable
    )
    x, _ = examples
    np.testing.assert_allclose(
        _logits(whitening.whitened(model), moved, x), _logits(model, whitening.plain(moved), x),
        atol=1e-4,
    )

  def test_a_step_is_one_on_white_features(self):
    model, (x, y) = _model(), _examples(300, seed=1)
    white = whitening.whitened(model)
    fitted = whitening.fitted(model, _weights(model), (x, y), _all)
    trainable = tuple(map(tf.constant, fitted.trainable))
    with tf.GradientTape() as tape:
      tape.watch(trainable)
      logits = white.predict_on_batch((trainable, fitted.non_trainable), tf.constant(x), training=True)
      loss = white.loss(logits, tf.constant(y))
    *_, of_values, of_constant = tape.gradient(loss, trainable)
    matrix, mean = fitted.non_trainable
    seen = (_features(_weights(model), x) - mean) @ matrix
    wrong = (tf.nn.softmax(logits).numpy() - np.eye(_CLASSES)[y]) / len(x)
    np.testing.assert_allclose(of_values, seen.T @ wrong, atol=1e-4)
    np.testing.assert_allclose(of_constant, wrong.sum(0), atol=1e-5)

  @pytest.mark.parametrize('change, match', [
      (lambda logits: logits - tf.reduce_logsumexp(logits, 1, keepdims=True), 'does not end in'),
      (lambda logits: logits, 'are the same for all'),
  ])
  def test_refuses_what_it_can_t_whiten(self, change, match):
    model, (x, y) = _model(), _examples(50, seed=1)
    other = tff.learning.models.FunctionalModel(
        initial_weights=model.initial_weights,
        predict_on_batch_fn=tf.function(
            lambda weights, x, training: change(model.predict_on_batch(weights, x, training=training))
        ),
        loss_fn=model.loss, input_spec=model.input_spec,
    )
    if 'same' in match:
      x = np.repeat(x[:1], 50, axis=0)
    with pytest.raises(ValueError, match=match):
      whitening.fitted(other, _weights(model), (x, y), _all)

  def test_padding_does_not_count(self):
    initializer = initializers.INITIALIZERS['keras']
    model = rnn.character_rnn(10, 4, (5, 6), 7, 0, initializer(3))
    rng = np.random.default_rng(0)
    x = rng.integers(1, 10, (40, 7)).astype(np.int32)
    y = np.where(np.arange(7) < 4, rng.integers(1, 10, (40, 7)), 0).astype(np.int32)
    trainable, non_trainable = model.initial_weights
    weights = tff.learning.models.ModelWeights(tuple(map(np.asarray, trainable)), non_trainable)
    found = whitening.fitted(model, weights, (x, y), lambda labels: labels != 0)
    # Of a recurrent model the first characters do not see the later: as if cut before the padding.
    short = rnn.character_rnn(10, 4, (5, 6), 4, 0, initializer(3))
    expected = whitening.fitted(short, weights, (x[:, :4], y[:, :4]), _all)
    for one, other in zip(found.non_trainable, expected.non_trainable):
      np.testing.assert_allclose(one, other, atol=1e-4)
