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

  def test_padding_counts_in_one_of_two_accuracies(self):
    model, weights = _model_and_weights()
    x, y = _examples()
    is_padding = lambda labels: tf.less(labels, 4)  # noqa: E731
    measure = evaluation.build(model, lambda labels: labels >= 4, is_padding)
    got = measure(weights, evaluation.shards_of((x, y)))
    agrees = np.argmax(model.predict_on_batch(model.initial_weights, x).numpy(), axis=1) == y
    assert got.accuracy == got.accuracy_masked == pytest.approx(np.mean(agrees[y >= 4]))
    assert got.accuracy_counted == pytest.approx(np.mean(agrees))
    assert got.accuracy_counted != pytest.approx(got.accuracy_masked, rel=1e-3)

  def test_shards_of_some_examples(self):
    x, y = _examples()

    def labels(*arguments):
      return [int(b) for d in evaluation.shards_of((x, y), *arguments) for _, b in d]

    assert labels() == list(y)
    assert labels(10**6) == list(y)
    assert len(labels(20, 1)) == 20 and labels(20, 1) == labels(20, 1)
    assert labels(20, 1) != labels(20, 2)
    assert len(labels(3)) == 3
    assert [len(shard) for shard in evaluation.shards_of((x, y))] == [121] * 5

  def test_same_bits_on_any_number_of_workers(self):
    model, weights = _model_and_weights()
    shards = evaluation.shards_of(_examples())
    found = []
    for workers in (1, 2):
      with runtime.local_context(None, workers):
        found.append(evaluation.build(model, lambda labels: labels >= 0)(weights, shards))
    assert found[0] == found[1]

  def test_sequences_equal_keras(self):
    sequence, vocabulary, num = 7, 11, 130
    model = rnn.character_rnn(
        vocabulary, 3, (5, 4), sequence, 0, initializers.KerasInitializer(0)
    )
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
    got = evaluation.build(model, lambda labels: tf.not_equal(labels, 0))(
        tff.learning.models.ModelWeights(*model.initial_weights), evaluation.shards_of((x, y))
    )
    logits = keras_model(x).numpy().astype(np.float64)
    log_sums = np.log(np.sum(np.exp(logits), axis=-1))
    losses = log_sums - np.take_along_axis(logits, y[..., None], -1)[..., 0]
    # A mean over the labels of each shard that are not padding; the two shards are equal halves.
    halves = [
        np.mean(losses[part][y[part] != 0]) for part in (slice(num // 2), slice(num // 2, num))
    ]
    assert got.loss == pytest.approx(np.mean(halves), rel=1e-5)
    assert got.accuracy == pytest.approx(np.mean((np.argmax(logits, -1) == y)[y != 0]))

  def test_an_empty_shard_counts_nothing(self):
    model, weights = _model_and_weights()
    x, y = _examples()
    measure = evaluation.build(model, lambda labels: labels >= 0)
    one, none = (
        tf.data.Dataset.from_tensor_slices((x[part], y[part])) for part in (slice(3), slice(0))
    )
    few = measure(weights, [none, one, none])
    whole = measure(weights, [tf.data.Dataset.from_tensor_slices((x[:3], y[:3]))])
    assert few.loss == pytest.approx(whole.loss, rel=1e-5)
    assert few.accuracy == whole.accuracy


class TestCadence:

  def _run(self, data_dir, out, *arguments):
    arguments = commands.tiny(data_dir, out, '--seed=1', '--rounds=6', *arguments)
    return commands.main([a for a in arguments if not a.startswith('--rounds_per_evaluation')])

  def _measured(self, out, column):
    rows = commands.rows(out / 'metrics.csv')
    return [int(row['round']) for row in rows if row[column]]

  def test_plan_table_and_resumed_run_have_the_same(
      self, data_dir, tmp_path, capsys, checkpoint_each_round
  ):
    # About 20 measurements, each of a sample but the last.
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    flags = ('--rounds=23', '--eval_examples=3', '--algorithm=fedavg')
    assert self._run(data_dir, whole, *flags) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert 'evaluation 3 random test examples every 2 rounds' in printed
    assert 'all after the last' in printed
    assert self._measured(whole, 'test_accuracy') == [*range(0, 23, 2), 23]
    shutil.copytree(
        whole, parts, ignore=shutil.ignore_patterns('round_23', 'summary.json', 'weights*')
    )
    assert self._run(data_dir, parts, *flags) == 0
    assert 'resuming after round 22 of 23' in capsys.readouterr().out
    assert commands.story(parts) == commands.story(whole)

  def test_a_short_run_measures_each_round(self, data_dir, tmp_path):
    out = tmp_path / 'run'
    assert self._run(data_dir, out, '--algorithm=fedavg') == 0
    assert self._measured(out, 'test_accuracy') == [*range(7)]
