"""Tests of evaluations on clients: when, on whom, and recorded before anyone evaluates."""

import contextlib
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff.privacy import budget as budget_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import checkpoints as checkpoints_lib
from fedsmp_tff.program import client_evaluation
from fedsmp_tff.program import loop
from tests.support import processes
from tests.support import tiny_models

_ROUNDS = 4
_ONE = fedsmp_tff.PrivacySpec(60, 4, _ROUNDS, 1.4, 1.0, 1e-3)
_SPEC = dataclasses.replace(
    _ONE, evaluation=dataclasses.replace(_ONE, rounds=2, noise_multiplier=1.0)
)


class _Cohorts:
  """Stands where the computation does: keeps what it is given."""

  def __init__(self, ledger_path=None, fails_at=None):
    self.cohorts = []
    self.numbers = []
    self._path = ledger_path
    self._fails_at = fails_at
    self.recorded = []

  def __call__(self, weights, number, cohort):
    self.cohorts.append(tuple(cohort))
    self.numbers.append(int(number))
    if self._path is not None:
      self.recorded.append(len(ledger_lib.read(self._path).evaluations))
    if len(self.numbers) == self._fails_at:
      raise RuntimeError('a crash')
    return {'accuracy': np.float64(0.5), 'stddev': np.float64(0.1)}


def _of(evaluate, seed=None, every=2):
  return client_evaluation.ClientEvaluation(
      evaluate, lambda i: i, _SPEC.evaluation.sampler(seed), _ROUNDS, every
  )


class TestComputation:

  @pytest.mark.parametrize('rounds', [1, 4, 9, 10])
  @pytest.mark.parametrize('every', [1, 3, 4, 20])
  def test_as_many_are_due_as_are_counted(self, rounds, every):
    one = dataclasses.replace(_of(None, every=every), rounds=rounds)
    due = [t for t in range(rounds + 1) if one.due(t)]
    assert len(due) == client_evaluation.num_evaluations(rounds, every)
    assert due[-1] == rounds and 0 not in due
    assert one.charged(rounds, None) == len(due)


class TestExecution:

  def _run(self, one, reports, **options):
    """Runs rounds of training; the cohorts of training, and what ended it."""
    cohorts = []

    def client_data(i):
      cohorts.append(i)
      return tf.data.Dataset.from_tensor_slices(
          tiny_models.regression_examples(2, seed=max(i, 0))
      )

    class Report(loop.Reporter):

      def __call__(self, report):
        reports.append(report)

    process = processes.fed_smp(
        tiny_models.linear_regression(),
        fedsmp_tff.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), 4, epochs=1),
        fedsmp_tff.Dense(), clients_per_round=4, seats=_SPEC.seats, clipping_norm=1.0,
        noise_multiplier=1.4,
    )
    _, stopped_by = loop.run(
        process, client_data, _SPEC.sampler(), _ROUNDS, lambda done, weights: None, [Report()],
        client_evaluation=one, **options,
    )
    return [tuple(c) for c in np.reshape(cohorts, [-1, _SPEC.seats])], stopped_by

  def test_each_is_recorded_before_and_reported_with_its_round(self, tmp_path):
    path = tmp_path / 'ledger.jsonl'
    evaluate, reports = _Cohorts(path), []
    with ledger_lib.Ledger(path, _SPEC) as ledger:
      training, _ = self._run(_of(evaluate), reports, ledger=ledger)
    assert evaluate.recorded == [1, 2] and evaluate.numbers == [0, 1]
    assert [r.client_evaluation is not None for r in reports] == [False, False, True, False, True]
    assert reports[-1].client_evaluation == (0.5, 0.1)
    assert [r.evaluations_charged for r in reports] == [0, 0, 1, 1, 2]
    record = ledger_lib.read(path)
    assert record.rounds == [0, 1, 2, 3] and record.evaluations == [2, 4]
    assert record.charged == [(_SPEC.evaluation.round, 2), (_SPEC.round, 4)]
    # 4 of 60 clients: two draws are the same with a probability under 1 %, unless they are one.
    cohorts = [tuple(sorted(c)) for c in training + evaluate.cohorts]
    assert len(set(cohorts)) >= 5

  @pytest.mark.parametrize('seed', [None, 5])
  def test_after_a_crash_a_lost_one_counts(self, tmp_path, seed):
    path, reports = tmp_path / 'ledger.jsonl', []
    state = dict(seed=None if seed is None else 3)
    for fails_at in (2, None):
      with (
          ledger_lib.Ledger(path, _SPEC, **state) as ledger,
          checkpoints_lib.Checkpoints(tmp_path / 'c', rounds_per_checkpoint=1) as checkpoints,
      ):
        evaluate = _Cohorts(fails_at=fails_at)
        expected = contextlib.nullcontext()
        if fails_at is not None:
          lost, expected = evaluate, pytest.raises(RuntimeError, match='a crash')
        with expected:
          self._run(_of(evaluate, seed), reports, ledger=ledger, checkpoints=checkpoints)
    # The evaluation after round 2 was reported and saved; that after round 4 is run again.
    assert [r.rounds_done for r in reports] == [0, 1, 2, 3, 4]
    record = ledger_lib.read(path)
    assert record.evaluations == [2, 4, 4]
    if seed is None:
      assert record.evaluations_charged == 3 and reports[-1].evaluations_charged == 3
      assert evaluate.numbers == [2] and evaluate.cohorts[0] not in lost.cohorts
    else:
      # The same noise for the same clients: one release.
      assert record.evaluations_charged == 2 and reports[-1].evaluations_charged == 2
      assert evaluate.numbers == lost.numbers[1:] and evaluate.cohorts == lost.cohorts[1:]

  def test_a_budget_that_refuses_one_stops_before_anyone_evaluates(self, tmp_path):
    # Between that of two rounds, and of two rounds and an evaluation.
    epsilons = [_SPEC.epsilon(rounds=2, evaluations=e) for e in (0, 1)]
    budget = budget_lib.EpsilonBudget(sum(epsilons) / 2, _SPEC)
    path, reports, evaluate = tmp_path / 'ledger.jsonl', [], _Cohorts()
    with ledger_lib.Ledger(path, _SPEC, budget=budget) as ledger:
      _, stopped_by = self._run(_of(evaluate), reports, ledger=ledger)
    assert isinstance(stopped_by, budget_lib.BudgetSpentError)
    assert str(stopped_by).startswith('The evaluation after round 2 does not begin: it would')
    assert not evaluate.numbers
    # The round that was within the budget is kept.
    assert [r.rounds_done for r in reports] == [0, 1, 2]
    assert reports[-1].client_evaluation is None
    assert ledger_lib.read(path).rounds == [0, 1] and not ledger_lib.read(path).evaluations
