"""Tests of the training loop and of the sampling of clients."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import runtime
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import sampling
from fedsmp_tff.program import checkpoints as checkpoints_lib
from fedsmp_tff.program import loop
from tests.support import processes
from tests.support import tiny_models
from tests.support import waiting


class _Tell(loop.Reporter):
  """Calls a function with each report, and carries how often."""

  def __init__(self, function=lambda report: None):
    self._function = function
    self.calls = 0
    self.restored = None

  def __call__(self, report):
    self._function(report)
    self.calls += 1

  def state(self):
    return {'calls': np.int64(self.calls)}

  def restore(self, rounds_done, state):
    self.calls = int(state['calls'])
    self.restored = rounds_done


class _Runs:

  def _run(self, reporters, rounds=5, evaluate=None, sampler_seed=0, **options):
    model = tiny_models.linear_regression()
    process = processes.fed_smp(
        model,
        fedsmp_tff.LocalTraining(
            tff.learning.optimizers.build_sgdm(0.1), 4, epochs=1
        ),
        fedsmp_tff.Dense(),
        clients_per_round=2,
        clipping_norm=1.0,
        noise_multiplier=0.0,
    )
    return loop.run(
        process,
        lambda i: tf.data.Dataset.from_tensor_slices(
            tiny_models.regression_examples(4, seed=i)
        ),
        sampling.FixedSampler(6, 2, seed=sampler_seed),
        rounds,
        loop.every(2, rounds, evaluate or (lambda weights: float(np.sum(weights.trainable[0])))),
        reporters,
        **options,
    )


class TestRun(_Runs):

  def test_reports_every_round_once_and_evaluates_when_due(self):
    reports = []
    weights, stopped_by = self._run([_Tell(reports.append)])
    assert stopped_by is None
    assert [r.rounds_done for r in reports] == list(range(6))
    assert reports[0].metrics is None
    assert all(
        r.metrics['aggregator']['participants'] == 2 for r in reports[1:]
    )
    assert [r.rounds_done for r in reports if r.evaluation is not None] == [0, 2, 4, 5]
    assert reports[5].evaluation == np.sum(weights.trainable[0])

  @pytest.mark.parametrize('kind', [KeyboardInterrupt, runtime.WorkersLostError])
  def test_an_interrupt_keeps_the_reported_rounds(self, kind):
    seen = []

    def interrupt(report):
      if report.rounds_done == 4:
        raise kind
      seen.append(report.rounds_done)

    weights, stopped_by = self._run([_Tell(interrupt)])
    assert isinstance(stopped_by, kind)
    assert seen == [0, 1, 2, 3]
    # The order of examples is fresh, so float sums differ in their last bits.
    np.testing.assert_allclose(
        weights.trainable[0],
        self._run([], rounds=3)[0].trainable[0],
        rtol=1e-5,
    )

  def test_a_round_that_was_not_reported_is_not_released(self):
    def evaluate(weights):
      del weights
      evaluate.calls += 1
      if evaluate.calls == 3:  # Before the first round, after 2 and after 4.
        raise KeyboardInterrupt

    evaluate.calls = 0
    seen = []
    weights, _ = self._run(
        [_Tell(lambda r: seen.append(r.rounds_done))], evaluate=evaluate
    )
    assert seen == [0, 1, 2, 3]
    np.testing.assert_allclose(
        weights.trainable[0],
        self._run([], rounds=3)[0].trainable[0],
        rtol=1e-5,
    )

  def test_nothing_is_returned_before_anything_was_reported(self):
    def interrupt(weights):
      raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
      self._run([], evaluate=interrupt)

  def test_between_rounds_it_can_be_ended(self):
    tell = _Tell()

    def end():
      if tell.calls == 3:
        raise KeyboardInterrupt

    _, stopped_by = self._run([tell], between_rounds=end)
    assert isinstance(stopped_by, KeyboardInterrupt) and tell.calls == 3


class TestGoingOn(_Runs):

  def _rounds_of(self, directory, *, fails_at=None, every=None, sampler_seed=0, **options):
    """Runs five rounds on checkpoints; returns what was reported, and the reporter."""
    seen = []

    def note(report):
      if report.rounds_done == fails_at:
        raise RuntimeError('a crash')
      seen.append(report.rounds_done)

    tell = _Tell(note)
    with checkpoints_lib.Checkpoints(directory, rounds_per_checkpoint=every) as c:
      if fails_at is None:
        self.weights, _ = self._run(
            [tell], checkpoints=c, sampler_seed=sampler_seed, **options
        )
      else:
        with pytest.raises(RuntimeError, match='a crash'):
          self._run([tell], checkpoints=c, sampler_seed=sampler_seed, **options)
    return seen, tell

  def test_after_a_crash_it_goes_on_after_the_last_reported_round(self, tmp_path):
    # Even where checkpoints are rare: an exception leaves time for one.
    assert self._rounds_of(tmp_path, fails_at=3, every=100)[0] == [0, 1, 2]
    seen, tell = self._rounds_of(tmp_path, every=100)
    assert tell.restored == 2 and seen == [3, 4, 5]
    # The crash came before the call was counted.
    assert tell.calls == 6
    np.testing.assert_allclose(
        self.weights.trainable[0], self._run([])[0].trainable[0], rtol=1e-5
    )
    assert self._rounds_of(tmp_path)[0] == []

  def test_checkpoints_come_after_reports(self, tmp_path):
    # What a killed process leaves: all rounds of the checkpoint are reported.
    at_report = []
    tell = _Tell(lambda r: at_report.append((r.rounds_done, sorted(os.listdir(tmp_path)))))
    with checkpoints_lib.Checkpoints(tmp_path, rounds_per_checkpoint=1) as c:
      self._run([tell], rounds=2, checkpoints=c)
    assert at_report == [(0, []), (1, ['round_0']), (2, ['round_0', 'round_1'])]

  def _draws(self, directory, monkeypatch, sampler_seed, **options):
    """Runs with a crash, loses the last checkpoint, resumes: the draws before and after."""
    draws = []
    sample = sampling.FixedSampler.sample

    def note(sampler, draw):
      draws.append((sampler, draw))
      return sample(sampler, draw)

    monkeypatch.setattr(sampling.FixedSampler, 'sample', note)
    self._rounds_of(directory, fails_at=3, every=1, sampler_seed=sampler_seed, **options)
    shutil.rmtree(directory / 'round_2')
    before = len(draws)
    self._rounds_of(directory, sampler_seed=sampler_seed, **options)
    found = [
        (tuple(sampler.state()), draw, tuple(sample(sampler, draw))) for sampler, draw in draws
    ]
    return found[:before], found[before:]

  def test_a_seeded_sampler_repeats_a_round_s_draw(self, tmp_path, monkeypatch):
    before, after = self._draws(tmp_path, monkeypatch, sampler_seed=5)
    assert [draw for _, draw, _ in before] == [0, 1, 2]
    assert [draw for _, draw, _ in after] == [1, 2, 3, 4] and after[:2] == before[1:]

  def test_without_a_ledger_no_unseeded_draw_is_used_twice(self, tmp_path, monkeypatch):
    before, after = self._draws(tmp_path, monkeypatch, sampler_seed=None)
    assert len(after) == 4
    assert not {used[:2] for used in before} & {used[:2] for used in after}

  def test_with_a_ledger_no_draw_is_used_twice(self, tmp_path, monkeypatch):
    spec = fedsmp_tff.PrivacySpec(6, 2, 5, 1.0, 1.0, 1e-3, sampling='fixed')
    (tmp_path / 'checkpoints').mkdir()
    with ledger_lib.Ledger(tmp_path / 'ledger.jsonl', spec) as ledger:
      before, after = self._draws(
          tmp_path / 'checkpoints', monkeypatch, sampler_seed=None, ledger=ledger
      )
    assert [draw for _, draw, _ in before + after] == list(range(7))
    # The sampler is the one that began: only its state can make it so.
    assert len({state for state, _, _ in before + after}) == 1

  def test_a_forgotten_context_gets_a_sentence(self):
    # TFF's worker outlives Python, and keeps its output open: it is ended by hand.
    code = """
import psutil
from tests.fedsmp_tff.program import test_loop
try:
  test_loop._Runs()._run([])
except RuntimeError as error:
  print(error, flush=True)
for child in psutil.Process().children():
  child.kill()
"""
    done = subprocess.run(
        [sys.executable, '-c', code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        timeout=waiting.SECONDS, check=False,
    )
    assert 'fedsmp_tff.runtime.set_local_context()' in done.stdout
