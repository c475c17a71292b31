"""Evaluates a run's weights and their averages over rounds: at no cost in epsilon."""

from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff.post_processing import averaging
from fedsmp_tff.program import loop
from tasks.training import cadence as cadence_lib
from tasks.training import evaluation
from tasks.training import run_tables

NAMES = run_tables.AVERAGES
# The weights of the round itself.
LAST = 'last'


class Averages(loop.Reporter):
  """Evaluates the last weights, an exponential average and the second half's mean.

  Its state, part of checkpoints, is the averages.
  """

  def __init__(
      self,
      model: tff.learning.models.FunctionalModel,
      rounds: int,
      exponential: averaging.ExponentialAverage,
      measure: Callable[[Any, bool], evaluation.Evaluation],
      cadence: cadence_lib.Cadence,
  ):
    """Initializes.

    Args:
      model: The model.
      rounds: T.
      exponential: The exponential average, without weights yet.
      measure: Measures weights; its second argument is whether this is the last time.
      cadence: When what is measured.
    """
    self._averages = dict(zip(NAMES, (exponential, averaging.TailAverage(rounds // 2))))
    self._zeros = tf.nest.map_structure(np.zeros_like, list(model.initial_weights[0]))
    self._rounds = rounds
    self._measure = measure
    self._cadence = cadence

  def evaluate(
      self, rounds_done: int, weights: tff.learning.models.ModelWeights
  ) -> Optional[dict[str, evaluation.Evaluation]]:
    """Takes in the weights after a round; measures them and the averages when due.

    Args:
      rounds_done: Rounds that ended; 0 for the initial weights, which are no result.
      weights: The weights after them.

    Returns:
      Evaluations by name, `LAST` first; None if nothing was due.
    """
    last = rounds_done == self._rounds
    if rounds_done:
      for average in self._averages.values():
        average.add(list(weights.trainable))
    if not loop.is_due(rounds_done, self._cadence.rounds_per_evaluation, self._rounds):
      return None
    found = {LAST: self._measure(weights, last)}
    every = self._cadence.rounds_per_average
    if every is not None and loop.is_due(rounds_done, every, self._rounds):
      for name, average in self.weights(weights.non_trainable).items():
        # In the first half of a run the mean of the second half is the last weights.
        same = _equal(average.trainable, weights.trainable)
        found[name] = found[LAST] if same else self._measure(average, last)
    return found

  def weights(self, non_trainable: Any) -> dict[str, tff.learning.models.ModelWeights]:
    """The averages by their names, as the model's weights; none before the first round.

    Args:
      non_trainable: The model's other weights, as a round has them: no average is of those.
    """
    return {
        name: tff.learning.models.ModelWeights(average.mean, non_trainable)
        for name, average in self._averages.items()
        if average.num
    }

  def state(self) -> Any:
    return {
        name: {
            'num': np.int64(average.num),
            'mean': self._zeros if average.mean is None else average.mean,
        }
        for name, average in self._averages.items()
    }

  def restore(self, rounds_done: int, state: Any) -> None:
    for name, average in self._averages.items():
      average.num = int(state[name]['num'])
      average.mean = list(state[name]['mean']) if average.num else None


def _equal(one: Any, other: Any) -> bool:
  return all(map(np.array_equal, tf.nest.flatten(one), tf.nest.flatten(other)))
