"""Tests of models with a dense last layer, against a NumPy reading of the whitening's formulas."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import cnn
from tasks.models import initializers
from tasks.models import rnn
from tasks.models import split
from tasks.training import features as features_lib

_FEATURES, _CLASSES = 6, 4
_INITIALIZER = initializers.INITIALIZERS['keras']


def _model():
  return cnn.cnn((4, 4, 1), (2,), (_FEATURES,), _CLASSES, _INITIALIZER(3))


def _rnn(sequence):
  return rnn.character_rnn(10, 4, (5, _FEATURES), sequence, 0, _INITIALIZER(3))


def _weights(model):
  trainable, _ = model.initial_weights
  return tff.learning.models.ModelWeights(tuple(map(np.asarray, trainable)), ())


def _examples(num, seed):
  rng = np.random.default_rng(seed)
  x = rng.integers(0, 256, (num, 4, 4, 1)).astype(np.uint8)
  return x, rng.integers(0, _CLASSES, num).astype(np.int32)


def _all(y):
  return tf.ones_like(y, tf.bool)


def _features(x):
  """Inputs of the last layer of `_model`, from the definition of the layers before."""
  kernel, bias, dense, constant, *_ = _model().initial_weights[0]
  out = tf.nn.conv2d(tf.cast(x, tf.float32) / 255, kernel, 1, 'SAME') + bias
  out = tf.nn.relu(tf.nn.max_pool2d(out, 2, 2, 'SAME'))
  return np.maximum(np.reshape(out, [len(x), -1]) @ dense + constant, 0)


def _logits(model, weights, x):
  return model.predict_on_batch((weights.trainable, ()), tf.constant(x), training=False).numpy()


def _split():
  model = _model()
  return model, *features_lib.split(model, _weights(model), _examples(600, seed=1), _all)


class TestComputation:

  @pytest.mark.parametrize('model, x_shape', [
      (_model(), [None, _FEATURES]), (_rnn(7), [None, 7, _FEATURES]),
  ])
  def test_head_takes_a_feature_vector_per_label(self, model, x_shape):
    x, y = model.head().input_spec
    assert x == tf.TensorSpec(x_shape, tf.int8) and y == model.input_spec[1]
    for array, other in zip(model.head().initial_weights[0], model.initial_weights[0][-2:]):
      np.testing.assert_array_equal(array, other)

  def test_a_column_of_labels_has_a_feature_vector_per_example(self):
    model = _model()
    column = split.SplitModel(
        model.body, model.initial_weights[0], model.loss,
        (model.input_spec[0], tf.TensorSpec([None, 1], tf.int32)),
    )
    x, y = column.head().input_spec
    assert x == model.head().input_spec[0] and y.shape.as_list() == [None, 1]
    images, labels = _examples(40, seed=1)
    bodies = [
        features_lib.split(model, _weights(model), (images, y), _all)[0]
        for y in (labels, labels[:, np.newaxis])
    ]
    np.testing.assert_array_equal(bodies[0].matrix, bodies[1].matrix)


class TestExecution:

  def test_features_are_white(self):
    _, body, _ = _split()
    x, _ = _examples(600, seed=1)
    features, matrix, mean = _features(x), body.matrix, body.mean
    np.testing.assert_allclose(mean, features.mean(0), rtol=1e-4)
    covariance = np.cov(features.T, bias=True)
    ridge = 0.03 * np.trace(covariance) / _FEATURES
    np.testing.assert_allclose(
        matrix @ (covariance + ridge * np.eye(_FEATURES)) @ matrix.T, np.eye(_FEATURES), atol=1e-3
    )
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-5)
    # Rounded to the nearest 1/16; the last bits of float32 may decide between two.
    np.testing.assert_allclose(
        body(tf.constant(x)) / 16, (features - mean) @ matrix, rtol=0, atol=1 / 32 + 1e-5
    )

  def test_large_features_end_at_eight(self):
    identity = split.FrozenBody(lambda weights, x: x, (), np.eye(4, dtype=np.float32), np.zeros(4))
    features = identity(tf.constant([[7.93, 8.1, -300.0, 1e30]]))
    # 127 and not 128, which int8 would make -128.
    np.testing.assert_array_equal(features, [[127, 127, -127, 127]])

  def test_head_on_features_equals_the_whole_model(self):
    model, body, head = _split()
    x, _ = _examples(50, seed=2)
    *_, kernel, bias = _weights(model).trainable
    np.testing.assert_allclose(
        _logits(model, _weights(model), x), _features(x) @ kernel + bias, atol=1e-5
    )
    for array, other in zip(body.weights_of(head).trainable, _weights(model).trainable):
      np.testing.assert_allclose(array, other, atol=1e-5)
    # Before round 0, and after steps.
    for step in (0, 0.1):
      moved = tff.learning.models.ModelWeights(tuple(w + step for w in head.trainable), ())
      kernel, bias = moved.trainable
      white = (_features(x) - body.mean) @ body.matrix
      np.testing.assert_allclose(
          white @ kernel + bias, _logits(model, body.weights_of(moved), x), atol=1e-4
      )
      steps = body(tf.constant(x))
      np.testing.assert_allclose(
          _logits(model.head(), moved, steps), steps.numpy() / 16 @ kernel + bias, atol=1e-5
      )

  def test_equal_examples_are_refused(self):
    with pytest.raises(ValueError, match='are the same for all'):
      split.whitening(np.repeat(np.random.default_rng(0).normal(size=(1, 5)), 50, axis=0))

  def test_padding_does_not_count(self):
    model, short = _rnn(7), _rnn(4)
    rng = np.random.default_rng(0)
    x = rng.integers(1, 10, (40, 7)).astype(np.int32)
    y = np.where(np.arange(7) < 4, rng.integers(1, 10, (40, 7)), 0).astype(np.int32)
    body, _ = features_lib.split(model, _weights(model), (x, y), lambda labels: labels != 0)
    # In a recurrent model the first characters do not see the later: as if cut before the padding.
    expected, _ = features_lib.split(short, _weights(model), (x[:, :4], y[:, :4]), _all)
    np.testing.assert_allclose(body.matrix, expected.matrix, atol=1e-4)
    np.testing.assert_allclose(body.mean, expected.mean, atol=1e-4)
