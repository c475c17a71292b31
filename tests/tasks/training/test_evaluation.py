"""Tests of loss and accuracy on test examples."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import runtime
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
  def test_equals_numpy_over_uneven_batches(self, scored_from):
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

  def test_shards_of_some_examples(self):
    x, y = _examples()

    def labels(*arguments):
      return [int(b) for d in evaluation.shards_of((x, y), *arguments) for _, b in d]

    assert labels() == list(y) == labels(10**6)
    assert len(labels(3)) == 3 and len(labels(20, 1)) == 20
    assert labels(20, 1) == labels(20, 1) != labels(20, 2)
    assert [len(shard) for shard in evaluation.shards_of((x, y))] == [121] * 5

  def test_same_bits_on_any_number_of_workers(self):
    model, weights = _model_and_weights()
    results = []
    for workers in (1, 2):
      with runtime.local_context(None, workers):
        measure = evaluation.build(model, lambda labels: labels >= 0)
        results.append(measure(weights, evaluation.shards_of(_examples())))
    assert results[0] == results[1]

  def test_sequences_equal_keras(self):
    sequence, vocabulary, num = 7, 11, 130
    model = rnn.character_rnn(vocabulary, 3, (5, 4), sequence, 0, initializers.KerasInitializer(0))
    layers = tf.keras.layers
    keras_model = tf.keras.Sequential([
        layers.Embedding(vocabulary, 3, input_length=sequence),
        layers.LSTM(5, return_sequences=True),
        layers.LSTM(4, return_sequences=True),
        layers.Dense(vocabulary),
    ])
    keras_model.set_weights([np.asarray(w) for w in model.initial_weights[0]])
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, vocabulary, (2, num, sequence)).astype(np.int32)
    result = evaluation.build(model, lambda labels: tf.not_equal(labels, 0))(
        tff.learning.models.ModelWeights(*model.initial_weights), evaluation.shards_of((x, y))
    )
    logits = keras_model(x).numpy().astype(np.float64)
    log_sums = np.log(np.sum(np.exp(logits), axis=-1))
    losses = log_sums - np.take_along_axis(logits, y[..., None], -1)[..., 0]
    # A mean over the labels of each shard that are not padding; the two shards are equal halves.
    halves = [
        np.mean(losses[part][y[part] != 0]) for part in (slice(num // 2), slice(num // 2, num))
    ]
    assert result.loss == pytest.approx(np.mean(halves), rel=1e-5)
    assert result.accuracy == pytest.approx(np.mean((np.argmax(logits, -1) == y)[y != 0]))


@pytest.mark.parametrize('rounds, measured', [(23, [*range(0, 23, 2), 23]), (6, [*range(7)])])
def test_plan_table_and_resumed_run_have_the_same_cadence(
    rounds, measured, data_dir, tmp_path, capsys, checkpoint_each_round
):
  # About 20 evaluations, each on a sample but the last.
  whole, parts = tmp_path / 'whole', tmp_path / 'parts'
  flags = ('--seed=1', f'--rounds={rounds}', '--eval_examples=3', '--algorithm=fedavg')
  assert commands.main(commands.tiny(data_dir, whole, *flags)) == 0
  printed = ' '.join(capsys.readouterr().out.split())
  every = 'every 2 rounds' if rounds == 23 else 'every round'
  assert f'evaluation 3 random test examples {every}' in printed
  assert 'all after the last' in printed
  rows = commands.rows(whole / 'metrics.csv')
  assert [int(row['round']) for row in rows if row['test_accuracy']] == measured
  shutil.copytree(
      whole, parts, ignore=shutil.ignore_patterns(f'round_{rounds}', 'summary.json', 'weights*')
  )
  assert commands.main(commands.tiny(data_dir, parts, *flags)) == 0
  assert f'resuming after round {rounds - 1} of {rounds}' in capsys.readouterr().out
  assert commands.story(parts) == commands.story(whole)
