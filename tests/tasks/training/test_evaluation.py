"""Tests of loss and accuracy on test examples."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import cnn
from tasks.models import initializers
from tasks.training import evaluation

_NUM = 605  # Two whole batches of 250 and a part of one.


def _model_and_weights():
  model = cnn.cnn((6, 6, 1), (2,), (5,), 10, initializers.KerasInitializer(0))
  return model, tff.learning.models.ModelWeights(*model.initial_weights)


def _examples():
  rng = np.random.default_rng(0)
  return (
      rng.integers(0, 256, (_NUM, 6, 6, 1), np.uint8),
      rng.integers(0, 10, _NUM).astype(np.int32),
  )


class TestExecution:

  @pytest.mark.parametrize('scored_from', [0, 4])
  def test_equals_numpy_over_uneven_batches(self, scored_from):
    model, weights = _model_and_weights()
    x, y = _examples()
    measure = evaluation.build(model, lambda labels: labels >= scored_from)
    got = measure(weights, evaluation.shards_of((x, y)))
    logits = model.predict_on_batch(model.initial_weights, x).numpy()
    log_sums = np.log(np.sum(np.exp(logits), axis=1))
    assert got.loss == pytest.approx(
        np.mean(log_sums - logits[np.arange(_NUM), y]), rel=1e-4
    )
    scored = y >= scored_from
    agrees = np.argmax(logits, axis=1) == y
    assert got.accuracy == pytest.approx(np.mean(agrees[scored]))

  def test_shards_of_some_examples(self):
    x, y = _examples()

    def labels(*arguments):
      return [int(b) for d in evaluation.shards_of((x, y), *arguments) for _, b in d]

    assert labels() == list(y)
    assert labels(10**6) == list(y)
    assert len(labels(20, 1)) == 20 and labels(20, 1) == labels(20, 1)
    assert labels(20, 1) != labels(20, 2)
    assert len(labels(3)) == 3  # Fewer than shards: some are empty.

  def test_empty_shards_count_nothing(self):
    model, weights = _model_and_weights()
    x, y = _examples()
    measure = evaluation.build(model, lambda labels: labels >= 0)
    few = measure(weights, evaluation.shards_of((x[:3], y[:3])))
    whole = measure(weights, [tf.data.Dataset.from_tensor_slices((x[:3], y[:3]))])
    assert few.loss == pytest.approx(whole.loss, rel=1e-5)
    assert few.accuracy == whole.accuracy
