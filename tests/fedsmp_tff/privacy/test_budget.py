"""Tests of budgets: no round that would pass one begins, whatever was spent before."""

import dataclasses

import pytest

from fedsmp_tff.privacy import budget as budget_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib

_SPEC = spec_lib.PrivacySpec(60, 10, 8, 4.0, 0.5, 1e-3)


def _epsilon(rounds):
  return _SPEC.epsilon(rounds=rounds)


class TestComputation:

  @pytest.mark.parametrize('most', [0, 13])
  def test_budget_allows_exactly_the_rounds_that_fit(self, most):
    # Between the epsilons of `most` rounds and of one more.
    middle = (_epsilon(most) + _epsilon(most + 1)) / 2
    for order in (range(16), reversed(range(16))):
      budget = budget_lib.EpsilonBudget(middle, _SPEC)
      assert [t for t in order if budget.allows(t)] == (
          list(range(most + 1)) if order == range(16) else list(range(most, -1, -1))
      )

  def test_earlier_runs_count_towards_the_budget(self):
    budget = budget_lib.EpsilonBudget(1.001 * _epsilon(8), _SPEC, before=[(_SPEC.round, 6)])
    assert budget.spent(2) == pytest.approx(_epsilon(8), rel=1e-6)
    assert budget.allows(2) and not budget.allows(3)
    spent = budget_lib.EpsilonBudget(_epsilon(8), _SPEC, before=[(_SPEC.round, 9)])
    assert not spent.allows(0)

  def test_bad_epsilon_and_other_sampling_are_refused(self):
    for epsilon in (0.0, -1.0, float('nan')):
      with pytest.raises(ValueError, match='must be positive'):
        budget_lib.EpsilonBudget(epsilon, _SPEC)
    fixed = dataclasses.replace(_SPEC, sampling='fixed_size', num_slots=None, min_reports=None)
    with pytest.raises(ValueError, match='do not compose'):
      budget_lib.EpsilonBudget(1.0, _SPEC, before=iter([(fixed.round, 1)]))


class TestExecution:

  def test_a_budget_for_another_spec_is_refused(self, tmp_path):
    budget = budget_lib.EpsilonBudget(1.0, dataclasses.replace(_SPEC, noise_multiplier=8.0))
    with pytest.raises(ValueError, match='must be made for `spec`=.*noise_multiplier=4.0.*=8.0'):
      ledger_lib.Ledger(tmp_path / 'ledger.jsonl', _SPEC, budget=budget)
    assert not [*tmp_path.iterdir()]

  @pytest.mark.parametrize('seed', [None, 0])
  def test_a_round_above_the_budget_is_not_recorded(self, tmp_path, seed):
    path = tmp_path / 'ledger.jsonl'
    budget = budget_lib.EpsilonBudget(_epsilon(3), _SPEC)
    with ledger_lib.Ledger(path, _SPEC, seed=seed, budget=budget) as ledger:
      # Round 1 twice: with a seed it is the same round.
      rounds = [0, 1, 1] if seed is None else [0, 1, 1, 2]
      for t in rounds:
        ledger.begin(t)
      would_be, spent = (f'{_epsilon(rounds):.4g}' for rounds in (4, 3))
      said = f'does not begin: it would bring epsilon to {would_be}, above .*{spent} is spent'
      with pytest.raises(budget_lib.BudgetSpentError, match=said):
        ledger.begin(3)
      assert ledger_lib.read(path).rounds == rounds
    with ledger_lib.Ledger(path, _SPEC, seed=seed) as ledger:
      ledger.begin(3)  # Without a budget it may.
