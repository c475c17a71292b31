"""Evaluations on clients between rounds: when they are due, on whom, and what they cost."""

from collections.abc import Callable
import dataclasses
import math
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow_federated as tff

from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import sampling


class PrivateAccuracy(NamedTuple):
  """A release of `build_private_evaluation`.

  Attributes:
    accuracy: In [0, 1] but for the noise; NaN if nothing was released.
    stddev: The standard deviation of the noise in it.
  """

  accuracy: float
  stddev: float


def num_evaluations(rounds: int, rounds_per_evaluation: int) -> int:
  """Returns the number of evaluations of a run, the one after the last round included.

  >>> num_evaluations(180, 36), num_evaluations(10, 4)
  (5, 3)
  """
  return math.ceil(rounds / rounds_per_evaluation)


@dataclasses.dataclass(frozen=True)
class ClientEvaluation:
  """Evaluates the model on a fresh cohort of clients, every few rounds and after the last.

  Attributes:
    evaluate: The computation (`build_private_evaluation`).
    client_data: See `loop.run`.
    sampler: Draws cohorts; another sampler than that of rounds, so that no draw is one of theirs.
    rounds: T.
    rounds_per_evaluation: Rounds from one evaluation to the next.
  """

  evaluate: tff.Computation
  client_data: Callable[[int], Any]
  sampler: sampling.Sampler
  rounds: int
  rounds_per_evaluation: int

  def due(self, rounds_done: int) -> bool:
    """Whether there is one after so many rounds; never before the first."""
    last = rounds_done == self.rounds
    return rounds_done > 0 and (last or rounds_done % self.rounds_per_evaluation == 0)

  def charged(self, rounds_done: int, ledger: Optional[ledger_lib.Ledger]) -> int:
    """Returns the number that count for privacy; without a ledger, of those that were due."""
    if ledger is not None:
      return ledger.evaluations_charged(rounds_done)
    return sum(map(self.due, range(rounds_done + 1)))

  def __call__(
      self, rounds_done: int, weights: Any, ledger: Optional[ledger_lib.Ledger]
  ) -> PrivateAccuracy:
    """Evaluates, once the ledger has recorded it.

    Args:
      rounds_done: Number of rounds that ended.
      weights: The model's weights after them.
      ledger: Records it; None: no ledger.

    Raises:
      BudgetSpentError: If it would pass the ledger's budget; nobody evaluates then.
      LedgerError: If it can't be recorded.
    """
    draw = rounds_done if ledger is None else ledger.begin_evaluation(rounds_done)
    cohort = [self.client_data(int(i)) for i in self.sampler.sample(draw)]
    found = self.evaluate(weights, np.int32(draw), cohort)
    return PrivateAccuracy(float(found['accuracy']), float(found['stddev']))
