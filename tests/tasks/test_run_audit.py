"""Tests of `python -m tasks.audit --run`: a right run stands, a run with a fault is refuted."""

import re

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import randomness
from fedsmp_tff import runtime
from fedsmp_tff.mechanism import mechanism
from fedsmp_tff.mechanism import round as round_lib
from fedsmp_tff.privacy import sampling
from tasks import audit
from tasks import run_audit
from tasks.training import pretraining
from tasks.training import settings as settings_lib
from tests.support import commands
from tests.support import small_data

_ROUNDS, _CLIENTS = 6, 12
_FLAGS = (
    '--task=tests.support.tiny_task', f'--rounds={_ROUNDS}', f'--clients_per_round={_CLIENTS}',
)
_RANDK = ('--algorithm=fedsmp_randk', '--p=0.1', '--batch_size=5', '--noise_multiplier=0.5')


def _audit(capsys, data_dir, *flags):
  """Audits a run in which all clients are canaries, in every round; returns status and output."""
  status, out, err = commands.of_module(
      capsys, audit, '--run', f'--canaries={_CLIENTS}', f'--data_dir={data_dir}', *_FLAGS, *flags
  )
  assert status in (0, 1), err
  return status, out


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  directory = tmp_path_factory.mktemp('data')
  small_data.write_fashion_mnist(directory)
  return directory


class TestCommand:

  def test_a_right_run_is_not_refuted_and_writes_no_file(
      self, data_dir, tmp_path, monkeypatch, capsys
  ):
    monkeypatch.chdir(tmp_path)
    status, out = _audit(capsys, data_dir, *_RANDK, '--seed=1')
    assert status == 0 and '  not refuted' in out and 'VALID' not in out
    reported, audited = (
        float(re.search(rf'{word} +epsilon [=>] (\S+)', out)[1]) for word in ('reported', 'audited')
    )
    # 72 coins, of which 84 % are guessed right, give or take 4.3 %.
    assert 0.2 * reported < audited < reported
    assert re.search(r' [56]\d of 72 coins guessed right', out)
    assert not list(tmp_path.iterdir())
    # A seed gives the same audit.
    assert _audit(capsys, data_dir, *_RANDK, '--seed=1') == (status, out)

  # Each has its own seed, since tests share a process that is compiled for equal flags.
  @pytest.mark.parametrize('fault, seed, reason', [
      ('noise', 2, 'allow less noise'), ('clip', 3, 'allow less noise'),
      ('seed', 4, 'two releases differ'), ('cohort', 5, 'cohorts are larger'),
  ])
  def test_a_run_with_a_fault_is_refuted(self, fault, seed, reason, data_dir, monkeypatch, capsys):
    flags = [*_RANDK, f'--seed={seed}']
    if fault == 'noise':  # Halved.
      share = mechanism.Mechanism.share_stddev.fget
      monkeypatch.setattr(mechanism.Mechanism, 'share_stddev', property(lambda m: share(m) / 2))
    elif fault == 'clip':  # Forgotten from the second round on: a canary has the largest value.
      report, clip = round_lib.FedSmpRound.report, round_lib._clip

      def forget(self, update, state, seed):
        def clip_at_first(kept, norm):
          values, *others = clip(kept, norm)
          return tf.where(state.round_num < 1, values, kept / norm), *others

        monkeypatch.setattr(round_lib, '_clip', clip_at_first)
        return report(self, update, state, seed)

      monkeypatch.setattr(round_lib.FedSmpRound, 'report', forget)
      flags += ['--noise_multiplier=3', '--rounds=12']
    elif fault == 'seed':  # Used in two rounds.
      round_seed = randomness.round_seed
      monkeypatch.setattr(
          randomness, 'round_seed', lambda seed, num: round_seed(seed, tf.where(tf.equal(num, 4), 2, num))
      )
    else:  # All clients in every round.
      monkeypatch.setattr(
          sampling.PoissonSampler, '_sample', lambda self, rng: np.arange(self.population)
      )
      flags.append('--clients_per_round=3')
    status, out = _audit(capsys, data_dir, *flags)
    assert status == 1 and 'RUN REFUTED' in out and reason in out, out

  @pytest.mark.parametrize('flags, sentence', [
      (['--canaries=13'], '--canaries=13 must be at most the number of clients, 12'),
      (['--algorithm=fedavg'], 'audits rounds with noise, but --algorithm=fedavg'),
      (['--noise_multiplier=0'], 'noise above 0'),
      (['--rounds=0'], '--rounds=0 has none'),
      (['--output_dir=x'], '--output_dir has no effect with --run, which writes no file'),
      (['--releases=1000'], '--releases is not a flag'),
      (['--canaries=0'], '--canaries must be an integer >= 1'),
  ])
  def test_bad_flags_get_one_sentence_and_status_2(self, flags, sentence, data_dir, capsys):
    err = commands.refused(
        capsys, audit, '--run', f'--data_dir={data_dir}', _FLAGS[0], _RANDK[0], *flags
    )
    assert re.search(sentence, err), err

  def test_canaries_have_no_effect_on_one_release(self, capsys):
    assert 'no effect unless --run' in commands.refused(capsys, audit, '--canaries=3')


class TestRecord:

  @pytest.mark.parametrize('flags', [
      pytest.param(('--algorithm=fedsmp_topk', '--public_examples=8', '--trainable=head',
                    '--warm_start=public', '--p=0.9', '--server_learning_rate=3',
                    '--server_learning_rate_schedule=linear_decay'), id='head'),
      pytest.param(('--algorithm=dp_fedavg', '--batch_size=5', '--clip_quantile=0.5', '--seed=2'),
                   id='adaptive_clip'),
      pytest.param(('--algorithm=fedsmp_released', '--batch_size=5', '--mask_rounds=2', '--p=0.1',
                    '--noise=discrete_gaussian', '--sampling=fixed_size',
                    '--server_optimizer=fedexp'), id='released', marks=pytest.mark.slow),
  ])
  def test_scores_are_coins_with_the_noise_that_is_reported(self, flags, data_dir):
    """In every kind of run: the sums of other clients, steps and scales are all removed."""
    settings, _ = settings_lib.parse([*_FLAGS, *flags, '--noise_multiplier=0.2', '--clip=0.01'])
    with runtime.local_context():
      experiment = run_audit.build(settings, str(data_dir), 6)
      record = run_audit.record(pretraining.initialize(experiment, None, False), 6)
    rounds, dim = _ROUNDS, experiment.round.num_kept
    assert record.scores.shape == record.coins.shape == (6 * rounds,)
    assert record.values.shape == (rounds, dim) and record.cohorts.all()
    assert 0 < np.count_nonzero(record.coins) < len(record.coins)
    sigma = experiment.aggregator.mechanism.values_noise_multiplier
    noise = record.scores - record.coins
    # 36 normal values: a mean of squares outside of this has a probability under 1e-4.
    assert 0.35 < np.mean((noise / sigma) ** 2) < 2.3
    # Canaries that are inserted are all that the other values have beside noise.
    energy = np.sum(record.values**2) - np.count_nonzero(record.coins)
    degrees = record.values.size
    assert abs(energy / sigma**2 - degrees) < 6 * np.sqrt(2 * degrees + 4 * 36 / sigma**2)
