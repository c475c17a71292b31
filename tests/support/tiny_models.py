"""A linear regression as a `FunctionalModel`: small, convex, easy to do by hand."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def linear_regression(features=4, outputs=2, seed=0):
  rng = np.random.default_rng(seed)
  weights = (
      rng.normal(size=(features, outputs)).astype(np.float32),
      rng.normal(size=outputs).astype(np.float32),
  )

  @tf.function
  def predict_on_batch(model_weights, x, training):
    del training
    w, b = model_weights[0]
    return tf.matmul(x, w) + b

  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.square(output - label))

  return tff.learning.models.FunctionalModel(
      initial_weights=(weights, ()),
      predict_on_batch_fn=predict_on_batch,
      loss_fn=loss,
      metrics_fns=tff.learning.metrics.create_functional_metric_fns(
          collections.OrderedDict(squared_error=tf.keras.metrics.MeanSquaredError)
      ),
      input_spec=(
          tf.TensorSpec([None, features], tf.float32),
          tf.TensorSpec([None, outputs], tf.float32),
      ),
  )


def with_dropout(model, rate=0.5, seed=1):
  """A model whose inputs are dropped at random in training."""
  predict = model.predict_on_batch

  @tf.function
  def predict_on_batch(weights, x, training):
    if training:
      x = tf.nn.dropout(x, rate, seed=seed)
    return predict(weights, x, training=training)

  return tff.learning.models.FunctionalModel(
      initial_weights=model.initial_weights, predict_on_batch_fn=predict_on_batch,
      loss_fn=model.loss, input_spec=model.input_spec,
  )


def softmax_regression(features, classes):
  """The weights of `linear_regression`, with labels int32 and their cross-entropy as the loss."""
  return tff.learning.models.FunctionalModel(
      initial_weights=linear_regression(features, classes).initial_weights,
      predict_on_batch_fn=tf.function(
          lambda weights, x, training: tf.matmul(x, weights[0][0]) + weights[0][1]
      ),
      loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(
          tf.nn.sparse_softmax_cross_entropy_with_logits(label, output)
      ),
      input_spec=(tf.TensorSpec([None, features], tf.float32), tf.TensorSpec([None], tf.int32)),
  )


def regression_examples(num, features=4, outputs=2, seed=0):
  rng = np.random.default_rng([seed, 1])
  return (
      rng.normal(size=(num, features)).astype(np.float32),
      rng.normal(size=(num, outputs)).astype(np.float32),
  )
