"""Tests of `python -m tasks.tune`: trials, vote and their share of epsilon."""

import dataclasses
import itertools
import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import runtime
from fedsmp_tff.privacy import ledger as ledger_lib
from tasks import account
from tasks import errors
from tasks import tune
from tasks import vote
from tasks.training import experiment as experiment_lib
from tasks.training import resuming
from tests.support import commands
from tests.support import gaussian_mechanism
from tests.support import tiny_task

_N, _ROUNDS = tiny_task.NUM_CLIENTS, 3
_RATES = '--server_learning_rate={0.5,1,4}'
_FLAGS = (
    '--task=tests.support.tiny_task', '--algorithm=fedsmp_randk', '--p=0.1', '--batch_size=5',
    '--warm_start=none', '--trainable=all',
)
# All clients in every round, for which there is a closed form.
_ALL = (f'--clients_per_round={_N}', '--sampling=poisson')


def _experiment(data_dir, *flags):
  """The candidates of a command line, and the first one's run."""
  candidates, _ = tune.parse([*_FLAGS, *flags], program='tune')
  seeds = experiment_lib.make_seeds(candidates[0].seed, None)
  return candidates, experiment_lib.Experiment.build(candidates[0], seeds, str(data_dir))


def _open_ledger(directory):
  numbers = itertools.count()
  return lambda experiment: resuming.open_ledger(
      pathlib.Path(directory) / f'{next(numbers)}.jsonl', experiment, ''
  )


def _spent(path, mu_per_round):
  """The epsilon of all rounds in a directory's ledgers, by the closed form, and their number."""
  records = [ledger_lib.read(file) for file in sorted(path.glob('privacy_ledger*.jsonl'))]
  num = sum(record.rounds_charged for record in records)
  return gaussian_mechanism.epsilon(mu_per_round * num**0.5, records[0].spec.delta), num


class TestVote:

  def test_scores_are_the_clipped_mean_of_numpy(self, data_dir, tmp_path):
    # The noise of the mean, MAX_NORM sigma / n = 4e-5, is a tenth of the tolerance.
    _, experiment = _experiment(data_dir, _RATES, *_ALL, '--noise_multiplier=0.001', '--seed=3')
    start = [np.asarray(w) for w in tf.nest.flatten(experiment.model.initial_weights[0])]
    rng = np.random.default_rng(5)
    # The last two have losses of several nats, which are clipped, and one that is infinite.
    weights = [[w + scale * rng.standard_normal(w.shape) for w in start] for scale in (0, 1, 3)]
    weights = [[w.astype(np.float32) for w in own] for own in (*weights, [np.full_like(w, np.inf) for w in start])]
    with runtime.local_context(workers=1):
      scores = vote.scores(experiment, weights, _open_ledger(tmp_path))
    total = np.zeros(len(weights))
    for x, y in experiment.data.clients:
      losses = []
      for own in weights:
        own = tf.nest.pack_sequence_as(experiment.model.initial_weights[0], own)
        logits = np.asarray(experiment.model.predict_on_batch((own, ()), x, training=False), float)
        logits -= logits.max(-1, keepdims=True)
        log_sums = np.log(np.exp(logits).sum(-1))
        losses.append(np.mean(log_sums - logits[np.arange(len(y)), y]))
      losses = np.where(np.isfinite(losses), losses, 1e6)
      ballot = losses - losses.mean()
      total += ballot * min(1, 0.5 / np.linalg.norm(ballot))
    np.testing.assert_allclose(scores, total / _N, atol=4e-4)
    assert scores.argmax() == 3

  def test_fresh_noise_differs_and_has_the_stated_size(self, data_dir, tmp_path):
    # Equal candidates: the scores are noise alone, here of 0.5 * 6 / 12 = 0.25.
    _, experiment = _experiment(data_dir, _RATES, *_ALL, '--noise_multiplier=6')
    start = [np.asarray(w) for w in tf.nest.flatten(experiment.model.initial_weights[0])]
    with runtime.local_context(workers=1):
      one, two = (
          vote.scores(experiment, [start] * 20, _open_ledger(directory))
          for directory in (tmp_path, tmp_path.parent)
      )
    assert not np.intersect1d(one, two).size
    # The standard deviation of 40 normals varies by 11 % of its mean: five times that.
    assert np.std([one, two]) == pytest.approx(0.25, rel=0.55)

  def test_trials_give_the_weights_after_a_round_at_each_rate(self, data_dir, tmp_path):
    candidates, experiment = _experiment(data_dir, _RATES, '--seed=3')
    assert vote.groups(candidates) == [[0, 1, 2]]
    with runtime.local_context(workers=1):
      weights = vote.candidate_weights(experiment, candidates, _open_ledger(tmp_path))
      for own, settings in zip(weights, candidates):
        trial = vote.with_own_seeds(experiment, 0).with_settings(settings)
        process, data = trial.process(), trial.client_data()
        sampler = trial.spec.sampler(trial.seeds.sampling)
        state = process.next(process.initialize(), [*map(data, sampler.sample(0))]).state
        expected = tf.nest.flatten(process.get_model_weights(state).trainable)
        for value, other in zip(own, expected):
          np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-5)

  def test_each_mask_size_has_a_trial_of_its_own(self):
    candidates, _ = tune.parse([*_FLAGS, _RATES, '--p={0.1,0.3}'], program='tune')
    assert len(candidates) == 6 and [len(group) for group in vote.groups(candidates)] == [3, 3]


class TestCommand:

  def test_epsilon_covers_choice_and_run_and_is_the_closed_form(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    flags = (*_FLAGS, _RATES, *_ALL, f'--data_dir={data_dir}', f'--output_dir={out}')
    status, printed, err = commands.of_module(capsys, tune, *flags)
    assert status == 0, err
    expected, num = _spent(out, 1 / 1.4)
    assert num == _ROUNDS + 2
    joint = float(re.search(r'together: epsilon = (\S+),', printed)[1])
    assert joint == pytest.approx(expected, rel=2e-3) and 'SIMULATED' not in printed
    choice = json.loads((out / 'tuning.json').read_text())
    config = json.loads((out / 'config.json').read_text())
    assert choice['chosen'] == np.argmin(choice['scores'])
    own = choice['candidates'][choice['chosen']]['server_learning_rate']
    assert config['server_learning_rate'] == own and config['seeds'] == choice['seeds']
    status, printed, _ = commands.of_module(capsys, account, str(out))
    quoted = float(re.search(r'Quote epsilon = (\S+),', printed)[1])
    assert status == 0 and quoted == pytest.approx(expected, rel=2e-3)

    # The same command repeats nothing; another one is refused.
    status, printed, _ = commands.of_module(capsys, tune, *flags)
    assert status == 0 and 'trial' not in printed and _spent(out, 1 / 1.4)[1] == num
    said = commands.refused(capsys, tune, *flags, '--server_learning_rate=9')
    assert 'has a choice among other candidates' in said
    for content in ('{', '{}', json.dumps({**choice, 'chosen': 3}), json.dumps({**choice, 'seeds': {}})):
      (out / 'tuning.json').write_text(content)
      assert "tuning.json can't be read" in commands.refused(capsys, tune, *flags)

  def test_epsilon_flag_is_for_all_rounds(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    status, printed, err = commands.of_module(
        capsys, tune, *_FLAGS, _RATES, *_ALL, '--epsilon=5', '--seed=1', f'--data_dir={data_dir}',
        f'--output_dir={out}',
    )
    assert status == 0, err
    joint = float(re.search(r'together: epsilon = (\S+),', printed)[1])
    assert 4.9 < joint <= 5 and printed.rstrip().endswith('SIMULATED')

  def test_an_interrupted_choice_is_counted_and_made_anew(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    out = tmp_path / 'run'
    flags = (*_FLAGS, _RATES, *_ALL, f'--data_dir={data_dir}', f'--output_dir={out}')
    with monkeypatch.context() as patch:
      def interrupt(*unused):
        raise errors.Interrupted(15)

      patch.setattr(vote, 'scores', interrupt)
      status, _, _ = commands.of_module(capsys, tune, *flags)
    assert status == 143 and not (out / 'tuning.json').exists()
    status, printed, err = commands.of_module(capsys, account, str(out))
    assert status == 0 and '1 rounds' in printed, err
    assert commands.of_module(capsys, tune, *flags)[0] == 0
    assert _spent(out, 1 / 1.4)[1] == _ROUNDS + 3

  def test_rounds_of_a_simulated_choice_share_no_seed(self, data_dir):
    _, experiment = _experiment(data_dir, _RATES, '--seed=1')
    own = [vote.with_own_seeds(experiment, number).seeds for number in (0, 1, vote._VOTE)]
    assert all(seeds.public() == experiment.seeds.public() for seeds in own)
    secret = [seed for s in (experiment.seeds, *own) for seed in (s.sampling, s.process)]
    assert len({*secret}) == 8
    _, experiment = _experiment(data_dir, _RATES)
    assert vote.with_own_seeds(experiment, 0).seeds.process is None

  @pytest.mark.parametrize('flags, said', [
      (['--p=0.1'], 'There is one candidate'),
      (['--rounds={1,2}'], '--rounds has several values'),
      (['--noise_multiplier={1,2}'], '--noise_multiplier has several values'),
      (['--algorithm=fedavg', '--p={0.1,0.2}'], 'no effect|needs no private choice'),
      (['--noise_multiplier=0', _RATES], 'needs no private choice'),
      (['--sampling=allocation', _RATES], 'whole block for every trial'),
      ([_RATES, '--overwrite'], 'not a flag of tasks.tune'),
  ])
  def test_what_a_vote_cannot_decide_is_refused(self, flags, said, capsys):
    assert re.search(said, commands.refused(capsys, tune, *_FLAGS, *flags))


def test_ballot_is_zero_without_examples(data_dir):
  candidates, experiment = _experiment(data_dir, _RATES)
  del candidates
  ballot = vote.Ballot(
      experiment.local_training().optimizer, 1, epochs=1, model=experiment.model, scale=2.0
  )
  trainable = [np.asarray(w) for w in tf.nest.flatten(experiment.model.initial_weights[0])]

  @dataclasses.dataclass
  class Weights:
    trainable: tuple
    non_trainable: tuple

  weights = Weights((tf.zeros([2]),), tuple(np.stack([w, 2 * w + 1]) for w in trainable))
  x, y = experiment.data.clients[0]
  for num in (0, len(y)):
    [update] = ballot.train(None, weights, (x[:num], y[:num]), None, None)
    assert bool(np.any(update)) == (num > 0)
    assert np.sum(update) == pytest.approx(0, abs=1e-4)
