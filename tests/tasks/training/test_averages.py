"""Tests of a run's averages: what goes into them, when they are measured, how they resume."""

import types

import numpy as np
import pytest
import tensorflow_federated as tff

from fedsmp_tff.post_processing import averaging
from tasks.training import averages
from tests.support import tiny_models

_ROUNDS, _DECAY = 30, 0.8


class _Run:
  """Averages of any weights, and what was measured of them."""

  def __init__(self, rounds_per_evaluation=1):
    self.model = tiny_models.linear_regression()
    self.measured = []
    self.averages = averages.Averages(
        self.model, _ROUNDS, averaging.ExponentialAverage(_DECAY), self._measure,
        rounds_per_evaluation,
    )
    rng = np.random.default_rng(0)
    self.weights = [
        [rng.normal(size=np.shape(w)).astype(np.float32) for w in self.model.initial_weights[0]]
        for _ in range(_ROUNDS + 1)
    ]

  def _measure(self, weights, last):
    self.measured.append((_flat(weights.trainable), last))
    return types.SimpleNamespace(accuracy=1 / len(self.measured))

  def evaluate(self, *rounds):
    """Evaluates rounds; returns those of which the last weights, and the averages, were measured."""
    of_last, of_averages = [], []
    for n in rounds:
      weights = tff.learning.models.ModelWeights(
          self.weights[n], self.model.initial_weights[1]
      )
      found = self.averages.evaluate(n, weights)
      if found is not None:
        of_last.append(n)
        assert list(found) in ([averages.LAST], [averages.LAST, *averages.NAMES])
        accuracies = [e.accuracy for e in found.values()]
        num = len(self.measured)
        assert accuracies == [1 / i for i in range(num - len(found) + 1, num + 1)]
        if len(found) > 1:
          of_averages.append(n)
    return of_last, of_averages


def _flat(trainable):
  return np.concatenate([np.ravel(w) for w in trainable])


class TestExecution:

  def test_what_is_measured(self):
    run = _Run()
    of_last, of_averages = run.evaluate(*range(_ROUNDS + 1))
    assert of_last == list(range(_ROUNDS + 1)) and of_averages == [10, 20, 30]
    assert [last for _, last in run.measured[-4:]] == [False, True, True, True]
    # Without the initial weights; of the second half of the run the plain mean.
    after = np.stack([_flat(weights) for weights in run.weights[1:]])
    np.testing.assert_allclose(run.measured[-1][0], after[15:].mean(axis=0), rtol=1e-4)
    np.testing.assert_array_equal(run.measured[-3][0], after[-1])
    # In the first half the last weights stand for it: 11 measurements before round 10's own.
    np.testing.assert_allclose(run.measured[12][0], after[9], rtol=1e-4)
    exponential = after[:5].mean(axis=0)
    for one in after[5:]:
      exponential = _DECAY * exponential + (1 - _DECAY) * one
    np.testing.assert_allclose(run.measured[-2][0], exponential, rtol=1e-4, atol=1e-6)
    kept = run.averages.weights()
    np.testing.assert_array_equal(_flat(kept['exponential'].trainable), run.measured[-2][0])
    np.testing.assert_array_equal(_flat(kept['tail'].trainable), run.measured[-1][0])

  def test_seldom_measurements_make_those_of_averages_rarer(self):
    of_last, of_averages = _Run(rounds_per_evaluation=2).evaluate(*range(_ROUNDS + 1))
    assert of_last == list(range(0, _ROUNDS + 1, 2)) and of_averages == [20, 30]

  def test_no_averages_before_the_first_round(self):
    run = _Run()
    assert run.evaluate(0) == ([0], []) and run.averages.weights() == {}

  @pytest.mark.parametrize('rounds_done', [0, 3, 17])
  def test_resumes_as_if_never_interrupted(self, rounds_done):
    whole, first, second = _Run(), _Run(), _Run()
    whole.evaluate(*range(_ROUNDS + 1))
    first.evaluate(*range(rounds_done + 1))
    second.averages.restore(rounds_done, first.averages.state())
    second.evaluate(*range(rounds_done + 1, _ROUNDS + 1))
    for (one, _), (other, _) in zip(whole.measured[-2:], second.measured[-2:]):
      np.testing.assert_array_equal(one, other)
