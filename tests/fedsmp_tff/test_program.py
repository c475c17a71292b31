"""Tests of the training loop and of the sampling of clients."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import program
from fedsmp_tff import runtime
from tests import tiny_models


class TestFixedSizeSampler:

  @pytest.mark.parametrize('clients', [0, 8])
  def test_refuses_numbers(self, clients):
    with pytest.raises(ValueError, match='from 1 to `population`=7'):
      program.FixedSizeSampler(7, clients)

  def test_distinct_clients_that_follow_seed_and_round(self):
    def rounds(seed):
      sampler = program.FixedSizeSampler(50, 10, seed)
      return [tuple(sampler.sample(t)) for t in range(5)]

    for cohort in rounds(1):
      assert len(set(cohort)) == 10 and 0 <= min(cohort) and max(cohort) < 50
    assert len(set(rounds(1))) == 5
    assert rounds(1) == rounds(1)
    assert rounds(1) != rounds(2)
    assert rounds(None) != rounds(None)

  def test_every_pair_is_as_likely(self):
    sampler = program.FixedSizeSampler(6, 2, seed=0)
    num_rounds, num_pairs = 6000, 15
    pairs = [tuple(sorted(sampler.sample(t))) for t in range(num_rounds)]
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    expected = num_rounds / num_pairs
    # Chi-squared with 14 degrees of freedom exceeds 42.6 with probability 1e-4.
    assert len(counts) == num_pairs
    assert np.sum((counts - expected) ** 2) / expected < 42.6


class TestRun:

  def _run(self, reporters, rounds=5, evaluate=None):
    model = tiny_models.linear_regression()
    process = fedsmp_tff.build_fed_smp(
        model,
        fedsmp_tff.LocalTraining(
            tff.learning.optimizers.build_sgdm(0.1), 4, epochs=1
        ),
        fedsmp_tff.Dense(),
        clients_per_round=2,
        clipping_norm=1.0,
        noise_multiplier=0.0,
    )
    return program.run(
        process,
        lambda i: tf.data.Dataset.from_tensor_slices(
            tiny_models.regression_examples(4, seed=i)
        ),
        program.FixedSizeSampler(6, 2, seed=0),
        rounds,
        evaluate or (lambda weights, last: (np.sum(weights.trainable[0]), last)),
        2,
        reporters,
    )

  def test_reports_every_round_once_and_evaluates_when_due(self):
    reports = []
    weights, stopped_by = self._run([reports.append])
    assert stopped_by is None
    assert [r.rounds_done for r in reports] == list(range(6))
    assert reports[0].metrics is None
    assert all(
        r.metrics['aggregator']['participants'] == 2 for r in reports[1:]
    )
    evaluated = {r.rounds_done: r.evaluation[1] for r in reports if r.evaluation}
    assert evaluated == {0: False, 2: False, 4: False, 5: True}
    assert reports[5].evaluation[0] == np.sum(weights.trainable[0])

  @pytest.mark.parametrize('kind', [KeyboardInterrupt, runtime.WorkersLostError])
  def test_an_interrupt_keeps_the_reported_rounds(self, kind):
    seen = []

    def interrupt(report):
      if report.rounds_done == 4:
        raise kind
      seen.append(report.rounds_done)

    weights, stopped_by = self._run([interrupt])
    assert isinstance(stopped_by, kind)
    assert seen == [0, 1, 2, 3]
    # The order of examples is fresh, so float sums differ in their last bits.
    np.testing.assert_allclose(
        weights.trainable[0],
        self._run([], rounds=3)[0].trainable[0],
        rtol=1e-5,
    )

  def test_a_round_that_was_not_reported_is_not_released(self):
    def evaluate(weights, last):
      del weights, last
      evaluate.calls += 1
      if evaluate.calls == 3:  # Before the first round, after 2 and after 4.
        raise KeyboardInterrupt

    evaluate.calls = 0
    seen = []
    weights, _ = self._run([lambda r: seen.append(r.rounds_done)], evaluate=evaluate)
    assert seen == [0, 1, 2, 3]
    np.testing.assert_allclose(
        weights.trainable[0],
        self._run([], rounds=3)[0].trainable[0],
        rtol=1e-5,
    )
