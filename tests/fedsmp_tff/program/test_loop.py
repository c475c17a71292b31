"""Tests of the training loop and of the sampling of clients."""

import contextlib
import dataclasses
import functools
import os
import shutil

import numpy as np
import psutil
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


# Large enough that two draws of two clients are equal with a probability of 1e-8.
_POPULATION = 10_000


@functools.cache
def _process(noise_multiplier=0.0, clients_per_round=2, **options):
  return processes.fed_smp(
      tiny_models.linear_regression(),
      fedsmp_tff.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), 4, epochs=1),
      fedsmp_tff.Dense(), clients_per_round=clients_per_round, clipping_norm=1.0,
      noise_multiplier=noise_multiplier, **options,
  )


def _examples(client):
  return tf.data.Dataset.from_tensor_slices(tiny_models.regression_examples(4, seed=client))


def _run(
    reporters, rounds=5, evaluate=None, sampler_seed=0, process=None, sampler=None,
    client_data=_examples, **options
):
  return loop.run(
      process or _process(),
      client_data,
      sampler or sampling.FixedSampler(_POPULATION, 2, seed=sampler_seed),
      rounds,
      loop.every(2, rounds, evaluate or (lambda weights: float(np.sum(weights.trainable[0])))),
      reporters,
      **options,
  )


class TestRun:

  def test_every_round_is_reported_and_evaluated_when_due(self):
    reports = []
    weights, stopped_by = _run([_Tell(reports.append)])
    assert stopped_by is None
    assert [r.rounds_done for r in reports] == list(range(6))
    assert reports[0].metrics is None
    assert all(r.metrics['aggregator']['participants'] == 2 for r in reports[1:])
    assert [r.rounds_done for r in reports if r.evaluation is not None] == [0, 2, 4, 5]
    assert reports[5].evaluation == np.sum(weights.trainable[0])

  @pytest.mark.parametrize('kind, where', [
      (KeyboardInterrupt, 'report'), (runtime.WorkersLostError, 'evaluation'),
  ])
  def test_only_reported_rounds_are_released(self, kind, where):
    seen, evaluations = [], []

    def report(report):
      if where == 'report' and report.rounds_done == 4:
        raise kind
      seen.append(report.rounds_done)

    def evaluate(weights):
      evaluations.append(weights)
      if where == 'evaluation' and len(evaluations) == 3:  # After rounds 0, 2 and 4.
        raise kind

    weights, stopped_by = _run([_Tell(report)], evaluate=evaluate)
    assert isinstance(stopped_by, kind) and seen == [0, 1, 2, 3]
    # The order of examples is fresh, so float sums differ in their last bits.
    np.testing.assert_allclose(
        weights.trainable[0], _run([], rounds=3)[0].trainable[0], rtol=1e-5
    )

  def test_an_interrupt_before_any_report_is_raised(self):
    def interrupt(weights):
      raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
      _run([], evaluate=interrupt)


class TestLedger:

  # For a process without noise; each refused process differs from it in one thing.
  _SPEC = fedsmp_tff.PrivacySpec(_POPULATION, 2, 3, 0.0, 1.0, 1e-5, sampling='fixed_size')

  def test_a_round_is_recorded_before_it_begins(self, tmp_path, monkeypatch):
    path, recorded = tmp_path / 'ledger.jsonl', []
    sample = sampling.FixedSampler.sample

    def note(sampler, draw):
      recorded.append(ledger_lib.read(path).rounds)
      return sample(sampler, draw)

    monkeypatch.setattr(sampling.FixedSampler, 'sample', note)
    with ledger_lib.Ledger(path, self._SPEC) as ledger:
      _run([], 3, sampler_seed=None, ledger=ledger)
    assert recorded == [[0], [0, 1], [0, 1, 2]]

  @pytest.mark.parametrize('sampler, what', [
      (sampling.FixedSampler(_POPULATION - 1, 2), '`population`=10000. Found 9999'),
      (sampling.FixedSampler(_POPULATION, 1), '`clients_per_round`=2. Found 1'),
      (sampling.PoissonSampler(_POPULATION, 2, 2), '`__class__`=.*FixedSampler'),
      (sampling.FixedSampler(_POPULATION, 2, seed=0), r'Seeded: sampler\.$'),
  ])
  def test_another_sampler_is_refused(self, tmp_path, sampler, what):
    self._refused(tmp_path, self._SPEC, what, _process(), sampler)

  def test_other_slots_are_refused(self, tmp_path):
    spec = dataclasses.replace(self._SPEC, sampling='poisson', num_slots=9, min_reports=9)
    sampler = sampling.PoissonSampler(_POPULATION, 2, 8)
    self._refused(tmp_path, spec, '`num_slots`=9. Found 8', _process(), sampler)

  @pytest.mark.parametrize('options, what', [
      (dict(noise_multiplier=0.9), '`noise_multiplier`=1.0. Found 0.9'),
      (dict(noise_multiplier=1.0, clients_per_round=3), '`clients_per_round`=2. Found 3'),
      # A share for each of two, of which one suffices: each is as large as the sum needs.
      (dict(noise_multiplier=1.0, min_reports=1), '`min_reports`=None. Found 1'),
      (dict(noise_multiplier=1.0, noise='discrete_gaussian'), '`noise`=gaussian. Found discrete'),
  ])
  def test_another_mechanism_is_refused(self, tmp_path, options, what):
    spec = dataclasses.replace(self._SPEC, noise_multiplier=1.0)
    self._refused(tmp_path, spec, what, _process(**options), spec.sampler())

  def _refused(self, tmp_path, spec, what, process, sampler):
    path = tmp_path / 'ledger.jsonl'
    with ledger_lib.Ledger(path, spec) as ledger:
      with pytest.raises(ValueError, match=what):
        _run([], 1, ledger=ledger, process=process, sampler=sampler)
    assert not ledger_lib.read(path).rounds  # Nothing is spent.

  def test_a_process_with_seeded_noise_is_refused(self, tmp_path):
    self._refused(
        tmp_path, self._SPEC, r'Seeded: process\.$', _process(seed=0), self._SPEC.sampler()
    )

  def test_fresh_noise_in_a_seeded_run_is_refused(self, tmp_path):
    with ledger_lib.Ledger(tmp_path / 'ledger.jsonl', self._SPEC, seed=0) as ledger:
      with pytest.raises(ValueError, match=r'Seeded: sampler, ledger\.$'):
        _run([], 1, ledger=ledger, sampler=self._SPEC.sampler(seed=0))

  def test_exact_metrics_of_clients_are_refused(self, tmp_path):
    spec = dataclasses.replace(self._SPEC, noise_multiplier=1.0)

    def model():
      return tff.learning.models.from_keras_model(
          tf.keras.Sequential([tf.keras.layers.InputLayer([4]), tf.keras.layers.Dense(2)]),
          loss=tf.keras.losses.MeanSquaredError(),
          input_spec=(tf.TensorSpec([None, 4]), tf.TensorSpec([None, 2])),
      )

    def process(metrics):
      return tff.learning.algorithms.build_unweighted_fed_avg(
          model, tff.learning.optimizers.build_sgdm(0.1),
          model_aggregator=fedsmp_tff.FedSmpFactory(fedsmp_tff.Dense(), spec.mechanism()),
          metrics_aggregator=metrics,
      )

    # These sums are secure, but have no noise.
    exact = process(tff.learning.metrics.secure_sum_then_finalize)
    tff.test.assert_not_contains_unsecure_aggregation(exact.next)
    self._refused(tmp_path, spec, 'releases metrics of clients exactly', exact, spec.sampler())
    loop._check_releases(process(fedsmp_tff.no_client_metrics))


@pytest.mark.usefixtures('checkpoint_each_round')
class TestResuming:

  def _rounds_of(self, directory, *, fails_at=None, sampler_seed=0, **options):
    """Runs five rounds on checkpoints; returns what was reported, and the reporter."""
    seen = []

    def note(report):
      if report.rounds_done == fails_at:
        raise RuntimeError('a crash')
      seen.append(report.rounds_done)

    tell = _Tell(note)
    c = checkpoints_lib.Checkpoints(directory)
    crash = pytest.raises(RuntimeError, match='a crash')
    with contextlib.nullcontext() if fails_at is None else crash:
      self.weights, _ = _run([tell], checkpoints=c, sampler_seed=sampler_seed, **options)
    return seen, tell

  def test_a_crashed_run_resumes_after_the_last_report(self, tmp_path, monkeypatch):
    # Even where checkpoints are rare: an exception leaves time for one.
    monkeypatch.setattr(checkpoints_lib, '_MAX_FRACTION_OF_TIME', 0.0)
    assert self._rounds_of(tmp_path, fails_at=3)[0] == [0, 1, 2]
    seen, tell = self._rounds_of(tmp_path)
    assert tell.restored == 2 and seen == [3, 4, 5]
    # The crash came before the call was counted.
    assert tell.calls == 6
    np.testing.assert_allclose(self.weights.trainable[0], _run([])[0].trainable[0], rtol=1e-5)
    assert self._rounds_of(tmp_path)[0] == []

  def test_checkpoints_come_after_reports(self, tmp_path):
    # A killed process leaves a checkpoint whose rounds are all reported.
    at_report = []
    tell = _Tell(lambda r: at_report.append((r.rounds_done, sorted(os.listdir(tmp_path)))))
    _run([tell], rounds=2, checkpoints=checkpoints_lib.Checkpoints(tmp_path))
    names = ['round_0.npz', 'round_1.npz']
    assert at_report == [(0, []), (1, names[:1]), (2, names)]

  @pytest.mark.parametrize('noise_multiplier, seed, saved', [
      (1.0, None, [0, 1, 2, 3, 4, 5]), (1.0, 0, [0, 5]), (0.0, None, [0, 5]),
  ])
  def test_each_round_is_saved_where_a_repeat_would_count(
      self, noise_multiplier, seed, saved, tmp_path, monkeypatch
  ):
    # Where time decides, there is none for checkpoints but the first and the last.
    monkeypatch.setattr(checkpoints_lib, '_MAX_FRACTION_OF_TIME', 0.0)
    spec = fedsmp_tff.PrivacySpec(
        _POPULATION, 2, 5, noise_multiplier, 1.0, 1e-5, sampling='fixed_size'
    )
    c, rounds = checkpoints_lib.Checkpoints(tmp_path / 'checkpoints'), []
    write = c._write

    def note(path, arrays):
      rounds.append(int(arrays['rounds_done']))
      write(path, arrays)

    monkeypatch.setattr(c, '_write', note)
    with ledger_lib.Ledger(tmp_path / 'ledger.jsonl', spec, seed=seed) as ledger:
      _run(
          [], checkpoints=c, ledger=ledger, sampler=spec.sampler(seed),
          process=_process(noise_multiplier, seed=seed),
          client_data=_examples if seed is None else lambda i: fedsmp_tff.tag_client(i, _examples(i)),
      )
    assert rounds == saved

  def _draws(self, directory, monkeypatch, sampler_seed, ledger=None):
    """Runs with a crash, loses the last checkpoint, is copied; both go on.

    `ledger`: makes the ledger of a directory.

    Returns:
      The draws before the copy, of the original, and of the copy: numbers and clients.
    """
    draws = []
    sample = sampling.FixedSampler.sample

    def note(sampler, draw):
      clients = sample(sampler, draw)
      draws.append((draw, tuple(clients)))
      return clients

    monkeypatch.setattr(sampling.FixedSampler, 'sample', note)
    found, original = [], directory / 'a'
    original.mkdir()
    for path, fails_at in ((original, 3), (original, None), (directory / 'b', None)):
      with contextlib.nullcontext() if ledger is None else ledger(path) as opened:
        self._rounds_of(
            path / 'checkpoints', fails_at=fails_at, sampler_seed=sampler_seed, ledger=opened,
        )
      if not found:
        (original / 'checkpoints' / 'round_2.npz').unlink()
        shutil.copytree(original, directory / 'b')
      found.append(list(draws))
      draws.clear()
    return found

  def test_a_seeded_sampler_repeats_the_draw_of_a_round(self, tmp_path, monkeypatch):
    before, *after = self._draws(tmp_path, monkeypatch, sampler_seed=5)
    assert [draw for draw, _ in before] == [0, 1, 2]
    for draws in after:
      assert [draw for draw, _ in draws] == [1, 2, 3, 4] and draws[:2] == before[1:]

  @pytest.mark.parametrize('recorded', [False, True])
  def test_an_unseeded_draw_is_never_repeated_by_a_copy(self, tmp_path, monkeypatch, recorded):
    spec = fedsmp_tff.PrivacySpec(_POPULATION, 2, 5, 0.0, 1.0, 1e-5, sampling='fixed_size')
    ledger = lambda path: ledger_lib.Ledger(path / 'ledger.jsonl', spec)  # noqa: E731
    draws = self._draws(tmp_path, monkeypatch, None, ledger if recorded else None)
    assert [len(part) for part in draws] == [3, 4, 4]
    clients = [found for part in draws for _, found in part]
    assert len(set(clients)) == len(clients)
    if recorded:
      before, *after = ([draw for draw, _ in part] for part in draws)
      assert before == [0, 1, 2] and after == [[3, 4, 5, 6]] * 2

  def test_a_missing_context_is_named(self):
    context = tff.backends.native.create_sync_local_cpp_execution_context()  # TFF's default.
    before = psutil.Process().children()
    with tff.framework.get_context_stack().install(context):
      with pytest.raises(RuntimeError, match=r'fedsmp_tff\.runtime\.set_local_context\(\)'):
        _run([])
    for child in {*psutil.Process().children()} - {*before}:  # TFF leaves its worker behind.
      child.kill()


def test_nested_batch_norm_in_a_stock_process_warns():
  # TFF warns of a layer of the model itself only.
  def model_fn():
    layers = tf.keras.layers
    inside = tf.keras.Sequential([layers.Dense(3), layers.BatchNormalization()])
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential([layers.InputLayer((4,)), inside, layers.Dense(2)]),
        loss=tf.keras.losses.MeanSquaredError(),
        input_spec=(tf.TensorSpec([None, 4]), tf.TensorSpec([None, 2])),
    )

  process = tff.learning.algorithms.build_unweighted_fed_avg(
      model_fn, tff.learning.optimizers.build_sgdm(0.1),
      model_aggregator=processes.factory(fedsmp_tff.Dense(), 2),
      metrics_aggregator=fedsmp_tff.no_client_metrics,
  )
  with pytest.warns(UserWarning, match='batch normalization.*Use .*GroupNormalization'):
    _run([], rounds=0, process=process)
