"""Tests of pre-training on public examples, against a NumPy reading of its schedule."""

import numpy as np
import pytest

from tasks import errors
from tasks.datasets import task as task_lib
from tasks.training import pretraining
from tests.support import tiny_models

_CLASSES, _FEATURES = 3, 4


def _examples(num):
  rng = np.random.default_rng(1)
  x = rng.normal(size=(num, _FEATURES)).astype(np.float32)
  y = np.argmax(x[:, :_CLASSES] + 0.3 * rng.normal(size=(num, _CLASSES)), axis=1)
  return x, y.astype(np.int32)


def _softmax(logits):
  exp = np.exp(logits - logits.max(1, keepdims=True))
  return exp / exp.sum(1, keepdims=True)


def _numpy_training(weights, x, y, schedule, seed):
  """Adam (Kingma and Ba, Algorithm 1), gradients clipped to norm 1, warm-up and cosine decay."""
  w = [np.array(a, np.float64) for a in weights]
  average, first, second = ([a.copy() for a in w], [a * 0 for a in w], [a * 0 for a in w])
  starts = range(0, len(x), schedule.batch_size)
  rng, step, steps = np.random.default_rng(seed), 0, (schedule.epochs - 1) * len(starts)
  for _ in range(schedule.epochs):
    order = rng.permutation(len(x))
    for start in starts:
      rows = order[start : start + schedule.batch_size]
      error = _softmax(x[rows] @ w[0] + w[1])
      error[np.arange(len(rows)), y[rows]] -= 1
      gradient = [x[rows].T @ error / len(rows), error.mean(0)]
      norm = np.sqrt(sum((g**2).sum() for g in gradient))
      gradient = [g * min(1, 1 / norm) for g in gradient]
      if step < len(starts):  # Warm-up in the first epoch.
        rate = schedule.learning_rate * step / len(starts)
      else:
        rate = schedule.learning_rate * (1 + np.cos(np.pi * (step - len(starts)) / steps)) / 2
      step += 1
      first = [0.9 * m + 0.1 * g for m, g in zip(first, gradient)]
      second = [0.999 * v + 0.001 * g**2 for v, g in zip(second, gradient)]
      factor = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
      w = [a - factor * m / (np.sqrt(v) + 1e-7) for a, m, v in zip(w, first, second)]
      decay = schedule.average_decay
      average = [decay * mean + (1 - decay) * a for mean, a in zip(average, w)]
  return [a / schedule.temperature for a in average]


class TestTrain:

  @pytest.mark.parametrize('decay', [0.0, 0.9])
  def test_training_equals_numpy(self, decay):
    # Inputs of norm 10: gradients are clipped at first.
    model, (x, y) = tiny_models.softmax_regression(_FEATURES, _CLASSES), _examples(50)
    schedule = task_lib.Pretraining(3, 0.05, 16, decay, temperature=1.3)
    reports = []
    weights = pretraining.train(model, schedule, (5 * x, y), 7, lambda *r: reports.append(r))
    expected = _numpy_training(model.initial_weights[0], 5 * x, y, schedule, 7)
    for array, expected_array in zip(weights.trainable, expected):
      np.testing.assert_allclose(array, expected_array, atol=2e-5)
    assert [epoch for epoch, _ in reports] == [1, 2, 3]
    assert reports[-1][1] < reports[0][1]

  def test_a_loss_that_is_not_finite_is_refused(self):
    x, y = _examples(40)
    with pytest.raises(errors.RunError, match='loss on the public examples is nan in epoch 1'):
      model = tiny_models.softmax_regression(_FEATURES, _CLASSES)
      pretraining.train(model, task_lib.Pretraining(), (x * np.nan, y), 1)
