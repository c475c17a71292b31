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
    self._accounting = accounting.tightest(spec.sampling, (*spec.releases(), *before))
    # Pairs of rounds and evaluations that were tried. Epsilon grows with both numbers.
    self._allowed, self._refused = [], []

  def spent(self, rounds: int, evaluations: int = 0) -> float:
    """Returns epsilon of the earlier runs, and so many rounds and evaluations of this one."""
    counted = [*self._before, *self._spec.releases(rounds, evaluations)]
    return accounting.epsilon(counted, self._accounting, self._spec.delta)

  def allows(self, rounds: int, evaluations: int = 0) -> bool:
    """Whether so many rounds and evaluations of the run stay within the budget."""
    asked = (rounds, evaluations)
    while not any(_within(asked, tried) for tried in self._allowed):
      if any(_within(tried, asked) for tried in self._refused):
        return False
      # First the whole run, then halfway to it: a few epsilons in all, not one for each round.
      above = [tried for tried in self._refused if _within(asked, tried)]
      if above:
        tried = tuple((a + b) // 2 for a, b in zip(asked, above[-1]))
      else:
        evaluation = self._spec.evaluation
        whole = (self._spec.rounds, evaluation.rounds if evaluation else 0)
        tried = tuple(map(max, asked, whole))
      fits = self.spent(*tried) <= self.epsilon
      (self._allowed if fits else self._refused).append(tried)
    return True


def _within(pair: tuple[int, int], other: tuple[int, int]) -> bool:
  """Whether no number of `pair` is more than that of `other`."""
  return all(a <= b for a, b in zip(pair, other))
