"""An epsilon that a run must not pass, with the runs on the same clients before it."""

from collections.abc import Sequence

from fedsmp_tff.privacy import accounting
from fedsmp_tff.privacy import spec as spec_lib


class BudgetSpentError(Exception):
  """A round would pass the budget, and does not begin; the message has the numbers."""


class EpsilonBudget:
  """An epsilon, at the delta of a run, and which rounds of the run stay within it.

  >>> spec = spec_lib.PrivacySpec(
  ...     population=6000, clients_per_round=100, rounds=180, noise_multiplier=1.4,
  ...     clipping_norm=1.0, delta=1e-5)
  >>> budget = EpsilonBudget(0.5, spec)
  >>> budget.allows(60), budget.allows(180)
  (True, False)
  >>> EpsilonBudget(0.5, spec, before=[(spec.round, 100)]).allows(60)
  False
  """

  def __init__(
      self,
      epsilon: float,
      spec: spec_lib.PrivacySpec,
      before: Sequence[tuple[accounting.Round, int]] = (),
  ):
    """Initializes.

    Args:
      epsilon: The budget, positive.
      spec: The specification of the run.
      before: Rounds of earlier runs on the same clients, each with how often it was begun.

    Raises:
      ValueError: If `epsilon` is not positive, or an earlier run sampled its clients in another
        way: the guarantees are then about other neighbours and don't add up.
    """
    if not epsilon > 0:
      raise ValueError(f'`epsilon_budget` must be positive. Found {epsilon}.')
    if any(one.sampling != spec.sampling for one, _ in before):
      raise ValueError(
          '`epsilon_budget` can\'t include earlier runs with another `sampling`: the guarantees'
          ' are about other neighbours and don\'t add up.'
      )
    self.epsilon = epsilon
    self._spec = spec
    self._before = list(before)
    by_loss = f'{spec.sampling}_pld'
    can = all(one.can_account(by_loss) for one in (spec.round, *(one for one, _ in before)))
    self._accounting = by_loss if can else f'{spec.sampling}_rdp'
    # Epsilon grows with rounds: up to here they are allowed, and from there they are not.
    self._allowed, self._refused = -1, None

  def spent(self, rounds: int) -> float:
    """Returns epsilon of the earlier runs and of so many rounds of this one."""
    counted = [*self._before, (self._spec.round, rounds)]
    return accounting.epsilon(counted, self._accounting, self._spec.delta)

  def allows(self, rounds: int) -> bool:
    """Whether so many rounds of the run stay within the budget."""
    while self._allowed < rounds and (self._refused is None or rounds < self._refused):
      # First the whole run, then halves: a few epsilons in all, not one for each round.
      if self._refused is None:
        tried = max(self._spec.rounds, rounds)
      else:
        tried = (self._allowed + self._refused) // 2
      if self.spent(tried) <= self.epsilon:
        self._allowed = tried
      else:
        self._refused = tried
    return rounds <= self._allowed
