"""Averages of a run's weights over rounds, and how good they are: at no cost in epsilon."""

from collections.abc import Callable
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff.post_processing import averaging
from fedsmp_tff.program import loop
from tasks.training import evaluation

# Averages change slowly: one in so many measurements of the last weights, and the last.
_MEASUREMENTS = 10
NAMES = ('exponential', 'tail')


class Averages(loop.Reporter):
  """An exponential average and the mean over the second half, measured at times.

  Attributes:
    accuracies: The last round's, by the average's name; empty if it was not measured.
  """

  def __init__(
      self,
      model: tff.learning.models.FunctionalModel,
      rounds: int,
      exponential: averaging.ExponentialAverage,
      measure: Callable[[Any, bool], evaluation.Evaluation],
      rounds_per_evaluation: int,
  ):
    self._averages = dict(zip(NAMES, (exponential, averaging.TailAverage(rounds // 2))))
    self._zeros = tf.nest.map_structure(np.zeros_like, list(model.initial_weights[0]))
    self._non_trainable = model.initial_weights[1]
    self._rounds = rounds
    self._measure = measure
    self._every = _MEASUREMENTS * rounds_per_evaluation
    self.accuracies = {}

  def __call__(self, report: loop.RoundReport) -> None:
    self.accuracies = {}
    if not report.rounds_done:
      return  # Initial weights are no result.
    last = report.rounds_done == self._rounds
    for name, average in self._averages.items():
      average.add(list(report.weights.trainable))
      if last or report.rounds_done % self._every == 0:
        self.accuracies[name] = self._measure(self.weights()[name], last).accuracy

  def weights(self) -> dict[str, tff.learning.models.ModelWeights]:
    """The averages by their names, as the model's weights; none before the first round."""
    return {
        name: tff.learning.models.ModelWeights(average.mean, self._non_trainable)
        for name, average in self._averages.items()
        if average.num
    }

  def state(self) -> Any:
    return {
        name: {
            'num': np.int64(average.num),
            'mean': self._zeros if average.mean is None else average.mean,
            'accuracy': np.float64(self.accuracies.get(name, math.nan)),
        }
        for name, average in self._averages.items()
    }

  def restore(self, rounds_done: int, state: Any) -> None:
    for name, average in self._averages.items():
      average.num = int(state[name]['num'])
      average.mean = list(state[name]['mean']) if average.num else None
    accuracies = {name: float(state[name]['accuracy']) for name in self._averages}
    self.accuracies = {n: value for n, value in accuracies.items() if not math.isnan(value)}
