"""Tests of loss and accuracy on test examples."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import cnn
from tasks.models import initializers
from tasks.models import rnn
from tasks.training import evaluation
from tests.support import commands

_NUM = 605  # Five shards, none of them larger than 125.


def _model_and_weights():
  model = cnn.cnn((6, 6, 1), (2,), (5,), 10, initializers.KerasInitializer(0))
  return model, tff.learning.models.ModelWeights(*model.initial_weights)


def _examples():
  rng = np.random.default_rng(0)
  x = rng.integers(0, 256, (_NUM, 6, 6, 1), np.uint8)
  return x, rng.integers(0, 10, _NUM).astype(np.int32)


class TestExecution:

  @pytest.mark.parametrize('scored_from', [0, 4])
  def test_measures_equal_numpy_over_uneven_batches(self, scored_from):
    model, weights = _model_and_weights()
    x, y = _examples()
    measure = evaluation.build(model, lambda labels: labels >= scored_from, 4)
    empty = evaluation.shards_of((x[:0], y[:0]))
    result = measure(weights, [*evaluation.shards_of((x, y)), *empty])
    logits = model.predict_on_batch(model.initial_weights, x).numpy()
    losses = np.log(np.sum(np.exp(logits), axis=1)) - logits[np.arange(_NUM), y]
    agrees = np.argmax(logits, axis=1) == y
    assert result == pytest.approx((
        np.mean(losses), np.mean(agrees[y >= scored_from]), np.mean(agrees[y != 4]),
        np.mean(agrees),
    ), rel=1e-4)
    assert np.mean(agrees) != pytest.approx(np.mean(agrees[y != 4]), rel=1e-3)

  def test_shards_hold_all_examples_or_a_seeded_sample(self):
    x, y = _examples()

    def labels(*arguments):
      return [int(b) for d in evaluation.shards_of((x, y), *arguments) for _, b in d]

    assert labels() == list(y) == labels(10**6)
    assert len(labels(3)) == 3 and len(labels(20, 1)) == 20
    assert labels(20, 1) == labels(20, 1) != labels(20, 2)
    assert [len(shard) for shard in evaluation.shards_of((x, y))] == [121] * 5

  def test_a_column_of_labels_counts_per_example(self):
    # Compared with a column, the predictions of five examples would make 25 comparisons.
    y = np.array([[1], [0], [1], [1], [0]], np.int64)
    x = np.array([[2], [-1], [3], [-4], [5]], np.float32)  # The logits: three of them right.
    model = tff.learning.models.FunctionalModel(
        initial_weights=((np.ones([1, 1], np.float32),), ()),
        predict_on_batch_fn=tf.function(lambda weights, x, training: tf.matmul(x, weights[0][0])),
        loss_fn=lambda output, y, sample_weight=None: tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(y, tf.float32), output)
        ),
        input_spec=(tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1], tf.int64)),
    )
    weights = tff.learning.models.ModelWeights(*model.initial_weights)
    measure = evaluation.build(model, lambda labels: tf.ones_like(labels, tf.bool))
    result = measure(weights, evaluation.shards_of((x, y)))
    assert result.accuracy == pytest.approx(3 / 5)
    margins = np.where(y, x, -x).astype(np.float64)
    assert result.loss == pytest.approx(np.mean(np.log1p(np.exp(-margins))), rel=1e-5)

  def test_labels_of_sequences_count_per_label(self):
    model = rnn.character_rnn(11, 3, (5, 4), 7, 0, initializers.KerasInitializer(0))
    weights = tff.learning.models.ModelWeights(*model.initial_weights)
    x, y = np.random.default_rng(1).integers(0, 11, (2, 130, 7)).astype(np.int32)
    measure = evaluation.build(model, lambda labels: tf.not_equal(labels, 0))
    result = measure(weights, evaluation.shards_of((x, y)))
    logits = model.predict_on_batch(model.initial_weights, x, training=False).numpy()
    assert result.accuracy == pytest.approx(np.mean((np.argmax(logits, -1) == y)[y != 0]))
    # The two shards are equal halves.
    losses = [float(model.loss(logits[part], y[part])) for part in (slice(65), slice(65, 130))]
    assert result.loss == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.slow
def test_plan_table_and_resumed_run_have_the_same_cadence(
    data_dir, tmp_path, capsys, checkpoint_each_round
):
  # About 20 evaluations on the sample, and at both ends on all.
  whole, parts = tmp_path / 'whole', tmp_path / 'parts'
  flags = ('--seed=1', '--rounds=23', '--eval_examples=3', '--algorithm=fedavg', '--verbose')
  assert commands.main(commands.tiny(data_dir, whole, *flags)) == 0
  printed = ' '.join(capsys.readouterr().out.split())
  assert 'evaluation 3 random test examples every 2 rounds; all before the first' in printed
  rows = commands.rows(whole / 'metrics.csv')
  for column, expected in (
      ('test_sample_accuracy', [*range(0, 23, 2), 23]), ('test_accuracy', [0, 23]),
  ):
    assert [int(row['round']) for row in rows if row[column]] == expected
  shutil.copytree(
      whole, parts, ignore=shutil.ignore_patterns('round_23.npz', 'summary.json', 'weights*')
  )
  assert commands.main(commands.tiny(data_dir, parts, *flags)) == 0
  assert 'resuming after round 22 of 23' in capsys.readouterr().out
  assert commands.story(parts) == commands.story(whole)
