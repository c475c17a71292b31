"""A limit on the total epsilon of a run and earlier runs on the same clients."""

import math

from fedsmp_tff import errors
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import round as round_lib
from fedsmp_tff.privacy import spec as spec_lib


class BudgetSpentError(errors.Error):
  """A round does not begin, because it would exceed the budget; the message has the numbers."""


class EpsilonBudget:
  """Decides whether rounds of a run stay within an epsilon, at the delta of the run.

  >>> spec = spec_lib.PrivacySpec(
  ...     population=6000, clients_per_round=100, rounds=180, noise_multiplier=4.0,
  ...     clipping_norm=1.0, delta=1e-5)
  >>> budget = EpsilonBudget(0.15, spec)
  >>> budget.allows(60), budget.allows(180)
  (True, False)
  >>> EpsilonBudget(0.15, spec, before=[(spec.round, 100)]).allows(60)
  False
  """

  def __init__(self, epsilon: float, spec: spec_lib.PrivacySpec, before: round_lib.Rounds = ()):
    """Initializes the budget.

    Args:
      epsilon: The budget, positive.
      spec: The specification of the run.
      before: Rounds of earlier runs on the same clients.

    Raises:
      ValueError: If `epsilon` is not positive, or the `sampling` of an earlier run has another
        adjacency, so that the guarantees do not compose.
    """
    errors.check_value(epsilon > 0, 'epsilon', 'positive', epsilon)
    self.epsilon = epsilon
    self.spec = spec
    self._before = list(before)
    self._accountant = accountants.tightest_sound_accountant(
        [*self._before, (spec.round, spec.rounds)]
    )
    # The most rounds known to fit, and the fewest known not to fit.
    self._max_allowed, self._min_refused = -1, math.inf

  def spent(self, rounds: int) -> float:
    """Returns epsilon of the earlier runs and of a number of rounds of this one."""
    counted = [*self._before, (self.spec.round, rounds)]
    return self._accountant.epsilon(counted, self.spec.delta)

  def allows(self, rounds: int) -> bool:
    """Returns whether a number of rounds of the run stays within the budget."""
    while self._max_allowed < rounds < self._min_refused:
      # First the whole run, then bisection: this computes fewer epsilons than one per round.
      candidate = max(rounds, self.spec.rounds)
      if self._min_refused < math.inf:
        candidate = (rounds + self._min_refused) // 2
      if self.spent(candidate) <= self.epsilon:
        self._max_allowed = candidate
      else:
        self._min_refused = candidate
    return rounds <= self._max_allowed

  def check(self, round_num: int, before: int, charged: int) -> None:
    """Raises `BudgetSpentError` if a round would exceed the budget.

    Args:
      round_num: The round, from 0.
      before: Number of rounds that count without it.
      charged: Number of rounds that count with it.
    """
    if not self.allows(charged):
      raise BudgetSpentError(
          f'Round {round_num + 1} does not begin: it would bring epsilon to'
          f' {self.spent(charged):.4g}, above the budget of {self.epsilon:g}'
          f' ({self.spent(before):.4g} is spent). All rounds before it are kept. Raise the budget'
          ' to resume.'
      )
