"""Tests of the training on public examples alone, against a NumPy reading of it."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import randomness
from fedsmp_tff import runtime
from tasks.training import public_model

_CLASSES, _FEATURES = 3, 4


def _model(seed=0):
  """Softmax regression on float32[4]."""
  rng = np.random.default_rng(seed)
  weights = (
      rng.normal(size=(_FEATURES, _CLASSES)).astype(np.float32) / 10,
      np.zeros(_CLASSES, np.float32),
  )

  @tf.function
  def predict_on_batch(model_weights, x, training):
    del training
    return tf.matmul(x, model_weights[0][0]) + model_weights[0][1]

  return tff.learning.models.FunctionalModel(
      initial_weights=(weights, ()),
      predict_on_batch_fn=predict_on_batch,
      loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(
          tf.nn.sparse_softmax_cross_entropy_with_logits(label, output)
      ),
      input_spec=(
          tf.TensorSpec([None, _FEATURES], tf.float32), tf.TensorSpec([None], tf.int32)
      ),
  )


def _examples(num, seed=1, noise=0.3):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(num, _FEATURES)).astype(np.float32)
  y = np.argmax(x[:, :_CLASSES] + noise * rng.normal(size=(num, _CLASSES)), axis=1)
  return x, y.astype(np.int32)


@contextlib.contextmanager
def _context(**options):
  with runtime.local_context(**options) as context:
    with tff.framework.get_context_stack().install(context):
      yield


def _all(labels):
  return tf.ones_like(labels, tf.bool)


def _softmax(logits):
  exp = np.exp(logits - logits.max(1, keepdims=True))
  return exp / exp.sum(1, keepdims=True)


def _numpy_training(weights, x, y, rate, epochs, seed):
  """Adam (Kingma and Ba, Algorithm 1) on clipped gradients, and the weights' average."""
  w = [np.array(a, np.float64) for a in weights]
  average, first, second = ([a.copy() for a in w], [a * 0 for a in w], [a * 0 for a in w])
  step = 0
  for epoch in range(epochs):
    order = tf.random.experimental.stateless_shuffle(
        tf.range(len(x)), randomness.fold_in(tf.constant([seed, 0], tf.int64), epoch)
    ).numpy()
    for start in range(0, len(x), 16):
      rows = order[start : start + 16]
      error = _softmax(x[rows] @ w[0] + w[1])
      error[np.arange(len(rows)), y[rows]] -= 1
      gradient = [x[rows].T @ error / len(rows), error.mean(0)]
      norm = np.sqrt(sum((g**2).sum() for g in gradient))
      gradient = [g * min(1, 1 / norm) for g in gradient]
      step += 1
      first = [0.9 * m + 0.1 * g for m, g in zip(first, gradient)]
      second = [0.999 * v + 0.001 * g**2 for v, g in zip(second, gradient)]
      factor = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
      w = [a - factor * m / (np.sqrt(v) + 1e-7) for a, m, v in zip(w, first, second)]
      average = [m + 0.01 * (a - m) for m, a in zip(average, w)]
  return average


class TestComputation:

  # Labels with little noise, and with so much that a model of 40 examples is too sure of itself.
  @pytest.mark.parametrize('noise, too_sure', [(0.3, False), (2.0, True)])
  def test_equals_numpy(self, noise, too_sure):
    model, (x, y) = _model(), _examples(50, noise=noise)
    with _context():
      found = public_model.train(model, _all, (x, y), seed=7)
    assert found.learning_rate in public_model.LEARNING_RATES
    assert 1 <= found.epochs <= public_model.MAX_EPOCHS
    # The last training: all examples, the chosen rate, for as many passes.
    expected = _numpy_training(
        model.initial_weights[0], x, y, found.learning_rate, found.epochs, seed=7
    )
    for got, array in zip(found.weights.trainable, expected):
      np.testing.assert_allclose(got, array / found.temperature, atol=2e-5)
    # The choice: the best accuracy on the ten that are held back, by training on the others.
    order = np.random.default_rng(7).permutation(50)
    aside, rest = order[:10], order[10:]
    w = _numpy_training(
        model.initial_weights[0], x[rest], y[rest], found.learning_rate, found.epochs, seed=7
    )
    accuracy = np.mean(np.argmax(x[aside] @ w[0] + w[1], axis=1) == y[aside])
    assert found.validation_accuracy == pytest.approx(accuracy)
    # The temperature: the least loss on the ten, of the same training on the others.
    logits = x[aside] @ w[0] + w[1]
    losses = [
        -np.mean(np.log(_softmax(logits / t)[np.arange(10), y[aside]]))
        for t in public_model.TEMPERATURES
    ]
    assert found.temperature == public_model.TEMPERATURES[np.argmin(losses)]
    assert (found.temperature > 1) == too_sure
    assert f'{found.epochs} epochs, temperature {found.temperature:g}' in found.text()

  def test_whole_people_are_held_back(self):
    people = np.repeat([3, 5, 8, 9], [40, 10, 25, 25])
    seen = set()
    for seed in range(20):
      aside, rest = public_model._split(100, seed, people)
      assert sorted([*aside, *rest]) == list(range(100))
      held_back = set(people[aside])
      assert held_back.isdisjoint(people[rest]) and len(held_back) < 4
      # A fifth, and nobody more than that takes.
      assert len(aside) >= 20
      assert any(len(aside) - np.sum(people == name) < 20 for name in held_back)
      seen.add(frozenset(held_back))
    assert len(seen) > 3
    for nobody in (None, np.zeros(100, int)):
      aside, rest = public_model._split(100, 0, nobody)
      assert (len(aside), len(rest)) == (20, 80) and sorted([*aside, *rest]) == list(range(100))

  def test_the_last_person_trains(self):
    aside, rest = public_model._split(100, 0, np.repeat([0, 1], [99, 1]))
    assert len(aside) in (1, 99) and len(aside) + len(rest) == 100

  @pytest.mark.parametrize(
      'losses, accuracies, temperature',
      [
          ([3.0, 2.0, 1.0], [0.5, 0.5, 0.5], 1.4),
          # Fewer labels than without, as where the last layer does not make logits.
          ([3.0, 2.0, 1.0], [0.5, 0.5, 0.4], 1.2),
          ([3.0, 2.0, np.nan], [0.5, 0.6, 0.6], 1.2),
      ],
  )
  def test_temperature(self, losses, accuracies, temperature):
    nothing = np.zeros([1, 1])
    curves = public_model._Curves(nothing, nothing, np.array([losses]), np.array([accuracies]))
    assert curves.temperature(0) == temperature

  @pytest.mark.parametrize(
      'accuracies, losses, best',
      [
          # The best accuracy; the least loss among equals.
          ([[0.1, 0.5], [0.7, 0.6]], [[1.0, 0.5], [0.9, 0.4]], (1, 0)),
          ([[0.1, 0.7], [0.7, 0.7]], [[1.0, 0.5], [0.9, 0.4]], (1, 1)),
          # A training that diverged, and passes that were not made.
          ([[0.9, np.nan], [0.2, 0.3]], [[np.nan, np.nan], [1.0, 2.0]], (1, 1)),
      ],
  )
  def test_best(self, accuracies, losses, best):
    curves = public_model._Curves(np.array(losses), np.array(accuracies), None, None)
    assert curves.best() == best

  def test_gives_up_where_neither_loss_nor_accuracy_gets_better(self, monkeypatch):
    monkeypatch.setattr(public_model, 'LEARNING_RATES', (30.0,))
    x, y = _examples(40)
    with _context():
      fit = public_model._build(_model(), _all)
      curves, _ = fit([(0, public_model.MAX_EPOCHS, 2, 1, 1, (x, y), (x, y))])
    made = int(np.isfinite(curves.losses).sum())
    assert 3 <= made < public_model.MAX_EPOCHS
    losses, accuracies = curves.losses[0, :made], curves.accuracies[0, :made]
    assert min(losses[-2:]) >= min(losses[:-2]) and max(accuracies[-2:]) <= max(accuracies[:-2])

  def test_same_bits_on_any_number_of_workers(self):
    found = []
    for workers in (1, 2):
      with _context(workers=workers):
        found.append(public_model.train(_model(), _all, _examples(40), seed=3))
    one, other = found
    assert one[1:] == other[1:]
    for array, same in zip(one.weights.trainable, other.weights.trainable):
      np.testing.assert_array_equal(array, same)
