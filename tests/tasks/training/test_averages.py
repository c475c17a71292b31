"""Tests of a run's averages: what goes into them, when they are measured, how they resume."""

import types

import numpy as np
import pytest
import tensorflow_federated as tff

from fedsmp_tff.post_processing import averaging
from tasks.training import averages
from tasks.training import cadence
from tests.support import tiny_models

_ROUNDS, _DECAY = 30, 0.8


class _Run:
  """Averages of any weights, and what was measured of them."""

  def __init__(self, rounds_per_evaluation=1, rounds_per_average=10, rounds=_ROUNDS):
    self.model = tiny_models.linear_regression()
    self.measured = []
    self.found = {name: [] for name in (averages.LAST, *averages.NAMES)}
    self.averages = averages.Averages(
        self.model, rounds, averaging.ExponentialAverage(_DECAY), self._measure,
        cadence.Cadence(rounds_per_evaluation, None, rounds_per_average, None),
    )
    rng = np.random.default_rng(0)
    self.weights = [
        [rng.normal(size=np.shape(w)).astype(np.float32) for w in self.model.initial_weights[0]]
        for _ in range(_ROUNDS + 1)
    ]

  def _measure(self, weights, last):
    self.measured.append((_flat(weights.trainable), last))
    return types.SimpleNamespace(accuracy=len(self.measured) - 1)

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
        for name, result in found.items():
          self.found[name].append(self.measured[result.accuracy])
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
    exponentials, tails = (run.found[name] for name in averages.NAMES)
    np.testing.assert_allclose(tails[-1][0], after[15:].mean(axis=0), rtol=1e-4)
    np.testing.assert_array_equal(run.found[averages.LAST][-1][0], after[-1])
    # In the first half the last weights stand for it: their measurement is not repeated.
    assert tails[0] is run.found[averages.LAST][10]
    assert len(run.measured) == (_ROUNDS + 1) + 3 + 2
    exponential = after[:5].mean(axis=0)
    for one in after[5:]:
      exponential = _DECAY * exponential + (1 - _DECAY) * one
    np.testing.assert_allclose(exponentials[-1][0], exponential, rtol=1e-4, atol=1e-6)
    kept = run.averages.weights(('others',))
    assert all(average.non_trainable == ('others',) for average in kept.values())
    np.testing.assert_array_equal(_flat(kept['exponential'].trainable), exponentials[-1][0])
    np.testing.assert_array_equal(_flat(kept['tail'].trainable), tails[-1][0])

  def test_rounds_between_measurements(self):
    of_last, of_averages = _Run(2, rounds_per_average=20).evaluate(*range(_ROUNDS + 1))
    assert of_last == list(range(0, _ROUNDS + 1, 2)) and of_averages == [20, 30]

  def test_averages_at_the_end_or_never(self):
    assert _Run(7, _ROUNDS).evaluate(*range(_ROUNDS + 1)) == ([0, 7, 14, 21, 28, 30], [30])
    run = _Run(7, None)
    assert run.evaluate(*range(_ROUNDS + 1)) == ([0, 7, 14, 21, 28, 30], [])
    # They are there to be kept.
    assert set(run.averages.weights(())) == set(averages.NAMES)

  def test_averages_of_one_round_are_its_weights(self):
    run = _Run(rounds=1)
    assert run.evaluate(0, 1) == ([0, 1], [1]) and len(run.measured) == 2

  def test_no_averages_before_the_first_round(self):
    run = _Run()
    assert run.evaluate(0) == ([0], []) and run.averages.weights(()) == {}

  @pytest.mark.parametrize('rounds_done', [0, 3, 17])
  def test_resumes_as_if_never_interrupted(self, rounds_done):
    whole, first, second = _Run(), _Run(), _Run()
    whole.evaluate(*range(_ROUNDS + 1))
    first.evaluate(*range(rounds_done + 1))
    second.averages.restore(rounds_done, first.averages.state())
    second.evaluate(*range(rounds_done + 1, _ROUNDS + 1))
    for (one, _), (other, _) in zip(whole.measured[-2:], second.measured[-2:]):
      np.testing.assert_array_equal(one, other)
