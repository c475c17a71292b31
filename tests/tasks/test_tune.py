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
from tasks import run
from tasks import tune
from tasks import vote
from tasks.cli import signals
from tasks.training import experiment as experiment_lib
from tasks.training import features
from tasks.training import resuming
from tests.support import commands
from tests.support import gaussian_mechanism
from tests.support import small_data
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


def _vote(experiment, directory):
  """The rounds of a choice, with ledgers in a directory."""
  numbers = itertools.count()

  def open_ledger(own):
    return resuming.open_ledger(pathlib.Path(directory) / f'{next(numbers)}.jsonl', own, '')

  return vote.Vote(experiment, open_ledger, itertools.count(), signals.Signals('tasks.tune'))


def _spent(path, mu_per_round):
  """The epsilon of all rounds in a directory's ledgers, by the closed form, and their number."""
  records = [ledger_lib.read(file) for file in sorted(path.glob('privacy_ledger*.jsonl'))]
  num = sum(record.rounds_charged for record in records)
  return gaussian_mechanism.epsilon(mu_per_round * num**0.5, records[0].spec.delta), num


def _interrupting_in_round(number):
  """`Signals.begin_round` that ends the command in one of its calls."""
  calls, begin_round = itertools.count(1), signals.Signals.begin_round

  def begin(stop):
    if next(calls) == number:
      raise errors.Interrupted(15)
    begin_round(stop)

  return begin


def _interrupt(monkeypatch, capsys, number, *flags, module=tune):
  """Runs a command until a signal comes before one of its rounds."""
  with monkeypatch.context() as patch:
    patch.setattr(signals.Signals, 'begin_round', _interrupting_in_round(number))
    assert commands.of_module(capsys, module, *flags)[0] == 143


def _refused_by_account(capsys, path):
  """The sentence with which `tasks.account` refuses a directory."""
  status, _, err = commands.of_module(capsys, account, str(path))
  assert status == 1
  return err


class TestVote:

  def test_scores_are_the_clipped_mean_of_numpy(self, data_dir, tmp_path):
    # The noise of the mean, MAX_NORM sigma / n = 4e-5, is a tenth of the tolerance.
    _, experiment = _experiment(data_dir, _RATES, *_ALL, '--noise_multiplier=0.001', '--clip=0.3', '--seed=3')
    start = [np.asarray(w) for w in tf.nest.flatten(experiment.model.initial_weights[0])]
    rng = np.random.default_rng(5)
    # The last two have no loss, and a very large one: they don't drown the differences of the others.
    weights = [[w + scale * rng.standard_normal(w.shape) for w in start] for scale in (0, 0.03, 0.06)]
    weights += [np.full_like(w, np.inf) for w in start], [1e4 * w for w in start]
    weights = [[w.astype(np.float32) for w in own] for own in weights]
    with runtime.local_context(workers=1):
      scores = _vote(experiment, tmp_path).scores(weights)
    total, largest = np.zeros(len(weights)), 0.0
    for x, y in experiment.data.clients:
      losses = []
      for own in weights:
        own = tf.nest.pack_sequence_as(experiment.model.initial_weights[0], own)
        logits = np.asarray(experiment.model.predict_on_batch((own, ()), x, training=False), float)
        logits -= logits.max(-1, keepdims=True)
        log_sums = np.log(np.exp(logits).sum(-1))
        losses.append(np.mean(log_sums - logits[np.arange(len(y)), y]))
      largest = max(largest, losses[4])
      least = min(loss for loss in losses if np.isfinite(loss))
      losses = np.array([min(loss, least + 0.5) if np.isfinite(loss) else least + 0.5 for loss in losses])
      ballot = losses - losses.mean()
      total += ballot * min(1, 0.5 / np.linalg.norm(ballot))
    np.testing.assert_allclose(scores, total / _N, atol=4e-4)
    assert {*np.argsort(scores)[-2:]} == {3, 4} and largest > 1e9
    assert np.diff(np.sort(scores[:3])).min() > 10 * 4e-5  # Ten standard deviations.

  def test_fresh_noise_differs_and_has_the_stated_size(self, data_dir, tmp_path):
    # Equal candidates: the scores are noise alone, here of 0.5 * 6 / 12 = 0.25.
    _, experiment = _experiment(data_dir, _RATES, *_ALL, '--noise_multiplier=6')
    start = [np.asarray(w) for w in tf.nest.flatten(experiment.model.initial_weights[0])]
    with runtime.local_context(workers=1):
      one, two = (
          _vote(experiment, directory).scores([start] * 20)
          for directory in (tmp_path, tmp_path.parent)
      )
    assert not np.intersect1d(one, two).size
    # The standard deviation of 40 normals varies by 11 % of its mean: five times that.
    assert np.std([one, two]) == pytest.approx(0.25, rel=0.55)

  def test_trials_give_the_weights_after_a_round_at_each_rate(self, data_dir, tmp_path):
    candidates, experiment = _experiment(data_dir, _RATES, '--seed=3')
    assert vote.groups(candidates) == [[0, 1, 2]]
    with runtime.local_context(workers=1):
      weights = _vote(experiment, tmp_path).weights(candidates)
      for own, settings in zip(weights, candidates):
        trial = _vote(experiment, tmp_path)._with_own_seeds().with_settings(settings)
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
    choice = json.loads((out / 'tuning.json').read_text())
    config = json.loads((out / 'config.json').read_text())
    summary = json.loads((out / 'summary.json').read_text())
    rows = commands.rows(out / 'metrics.csv')
    for epsilon in (
        summary['epsilon'], config['epsilon_after_all_rounds'], float(rows[-1]['epsilon']),
        *map(float, re.findall(r'epsilon = (\S+?),? (?:for|delta)', printed)),
    ):
      assert epsilon == pytest.approx(expected, rel=2e-3)
    assert printed.count('5 rounds (2 of the choice): VALID') == 3
    assert 'excludes   other tuning,' in printed
    assert choice['chosen'] == np.argmin(choice['scores'])
    own = choice['candidates'][choice['chosen']]
    assert config['flags'] == own and config['seeds'] == choice['seeds']
    status, printed, _ = commands.of_module(capsys, account, str(out))
    quoted = float(re.search(r'Quote epsilon = (\S+),', printed)[1])
    assert status == 0 and quoted == pytest.approx(expected, rel=2e-3)

    # The same command, in any order of values, repeats nothing; another one is refused. An earlier
    # version did not have all flags.
    for own in choice['candidates']:
      assert own.pop('unbiased')
    (out / 'tuning.json').write_text(json.dumps(choice))
    reordered = [f.replace('0.5,1,4', '4,1,0.5') for f in flags]
    status, printed, _ = commands.of_module(capsys, tune, *reordered)
    assert status == 0 and 'trial' not in printed and _spent(out, 1 / 1.4)[1] == num
    for module, more in ((tune, '--server_learning_rate=9'), (tune, '--noise_multiplier=1')):
      assert 'has a choice among other' in commands.refused(capsys, module, *flags, more)
    single = [f for f in flags if f != _RATES] + ['--server_learning_rate=9']
    assert 'a run with' in commands.refused(capsys, run, *single)
    (out / 'config.json').rename(tmp_path / 'config.json')
    for name in ('metrics.csv', 'timings.csv', 'privacy_ledger.jsonl'):
      (out / name).rename(tmp_path / name)
    assert 'is of tasks.tune, which chose' in commands.refused(capsys, run, *single)
    for content in (
        '{', '{}', json.dumps({**choice, 'chosen': 3}), json.dumps({**choice, 'seeds': {}}),
        json.dumps({**choice, 'privacy': {'noise_multiplier': 0}}),
        json.dumps({**choice, 'candidates': [1]}), json.dumps({**choice, 'ledgers': {}}),
    ):
      (out / 'tuning.json').write_text(content)
      assert "tuning.json can't be read" in commands.refused(capsys, tune, *flags)
    for content in (
        '[]', '{}', '{"ledgers": null}', '{"ledgers": [[1]]}', '{"ledgers": {"a": "b"}}',
        '{"ledgers": {"a": Infinity}}', '{"ledgers": {"a": true}}',
    ):
      (out / 'tuning.json').write_text(content)
      assert 'tuning.json is damaged' in _refused_by_account(capsys, out)
    # A choice whose ledgers are cut or lost is not for free, here and among other runs.
    (out / 'tuning.json').write_text(json.dumps(choice))
    assert [*choice['ledgers'].values()] == [1, 1]
    path = out / [*choice['ledgers']][0]
    path.write_bytes(path.read_bytes().splitlines(True)[0])
    for change in (lambda: None, path.unlink, lambda: (out / [*choice['ledgers']][1]).unlink()):
      change()
      assert 'or rounds of them' in _refused_by_account(capsys, out)

  def test_a_lost_choice_is_not_left_out_of_a_sweep(self, data_dir, tmp_path, capsys, monkeypatch):
    flags = (*_FLAGS, _RATES, *_ALL, f'--data_dir={data_dir}')
    _interrupt(monkeypatch, capsys, 2, *flags, f'--output_dir={tmp_path / "choice"}')
    assert commands.of_module(capsys, account, str(tmp_path))[0] == 0
    for ledger in (tmp_path / 'choice').glob('privacy_ledger*'):
      ledger.unlink()
    single = [f for f in flags if f != _RATES]
    assert commands.of_module(capsys, run, *single, f'--output_dir={tmp_path / "run"}')[0] == 0
    assert 'lacks ledgers of its choice' in _refused_by_account(capsys, tmp_path)

  def test_the_choice_counts_if_its_file_is_lost(self, data_dir, tmp_path, capsys, monkeypatch):
    out = tmp_path / 'run'
    flags = (*_FLAGS, _RATES, *_ALL, f'--data_dir={data_dir}', f'--output_dir={out}')
    _interrupt(monkeypatch, capsys, 5, *flags)
    choice = json.loads((out / 'tuning.json').read_text())
    # An older state of the file, or none, is no reason to choose again beside a run, which resumes.
    older = json.dumps({**choice, 'chosen': None, 'scores': None})
    own = choice['candidates'][choice['chosen']]['server_learning_rate']
    single = [f for f in flags if f != _RATES] + [f'--server_learning_rate={own}']
    for change, said in (
        (lambda: (out / 'tuning.json').write_text(older), 'lacks the choice of the run'),
        (lambda: (out / 'tuning.json').write_text('{'), "can't be read"),
        ((out / 'tuning.json').unlink, 'lacks the choice of the run'),
    ):
      change()
      refusal = commands.refused(capsys, tune, *flags)
      assert said in refusal and re.search('resume (the|its) run by tasks.run', refusal)
      _interrupt(monkeypatch, capsys, 1, *single, module=run)
    status, printed, err = commands.of_module(capsys, run, *single)
    assert status == 0 and '(2 of the choice)' in printed, err
    expected, _ = _spent(out, 1 / 1.4)
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['choice_rounds'] == 2 and summary['epsilon'] == pytest.approx(expected, rel=2e-3)
    assert 'and 2 of the choice' in commands.of_module(capsys, run, *single)[1]
    (out / [*choice['ledgers']][0]).unlink()
    assert 'lacks ledgers of its choice' in _refused_by_account(capsys, out)

  def test_other_rounds_in_the_directory_are_refused(self, data_dir, tmp_path, capsys, monkeypatch):
    out = tmp_path / 'run'
    flags = (*_FLAGS, _RATES, *_ALL, f'--data_dir={data_dir}', f'--output_dir={out}')
    _interrupt(monkeypatch, capsys, 2, *flags)
    [own] = out.glob('privacy_ledger*')
    record, other = ledger_lib.read(own), out / 'privacy_ledger.1.jsonl'
    for change in (
        dict(spec=dataclasses.replace(record.spec, noise_multiplier=0.3)), dict(seed=1),
        dict(data='others'),
    ):
      with ledger_lib.Ledger(other, **dict(spec=record.spec, data=record.data) | change) as ledger:
        ledger.begin(0)
      assert 'with other clients, sampling or noise' in commands.refused(capsys, tune, *flags)
      other.unlink()
    # Without the file of the choice the rounds would count for nothing.
    (out / 'tuning.json').unlink()
    single = [f for f in flags if f != _RATES]
    for module, arguments in ((tune, flags), (run, single), (run, [*single, '--dry_run'])):
      refusal = commands.refused(capsys, module, *arguments)
      assert 'config.json is missing' in refusal and 'Restore it (or tuning.json, if' in refusal
    assert '(or tuning.json, if tasks.tune was choosing) is lost' in commands.refused(capsys, account, str(out))
    status, _, err = commands.of_module(capsys, run, *single, f'--output_dir={tmp_path / "run2"}')
    assert status == 0, err
    for name in ('config.json', 'privacy_ledger.jsonl', 'metrics.csv', 'timings.csv', 'summary.json'):
      (tmp_path / 'run2' / name).rename(out / name)
    assert 'has a run that tasks.tune did not begin' in commands.refused(capsys, tune, *flags)

  def test_a_lost_ledger_of_an_interrupted_choice_is_noticed(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    out = tmp_path / 'run'
    flags = (*_FLAGS, _RATES, '--p=0.3', *_ALL, f'--data_dir={data_dir}', f'--output_dir={out}')
    _interrupt(monkeypatch, capsys, 1, *flags)
    assert json.loads((out / 'tuning.json').read_text())['ledgers'] == {}
    _interrupt(monkeypatch, capsys, 3, *flags)  # After two trials.
    choice = json.loads((out / 'tuning.json').read_text())
    assert choice['chosen'] is None and [*choice['ledgers'].values()] == [1, 1]
    (out / [*choice['ledgers']][1]).unlink()
    for module, arguments in ((tune, flags), (account, [str(out)])):
      status, _, err = commands.of_module(capsys, module, *arguments)
      assert status == 1 and 'lacks ledgers of its choice' in err

  def test_a_ledger_is_promised_before_its_round_and_its_round_after_a_failure(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    out = tmp_path / 'run'
    path, promised = out / 'tuning.json', []

    def fail(*unused, **unused_too):
      promised.append([*json.loads(path.read_text())['ledgers'].values()])
      raise errors.Interrupted(15)

    monkeypatch.setattr(features.ClientData, '__call__', fail)  # The round has begun.
    status, _, _ = commands.of_module(
        capsys, tune, *_FLAGS, _RATES, *_ALL, f'--data_dir={data_dir}', f'--output_dir={out}'
    )
    assert status == 143 and promised == [[0]]
    assert [*json.loads(path.read_text())['ledgers'].values()] == [1]

  def test_a_choice_on_other_data_and_a_sigma_that_is_too_small_are_refused(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    out = tmp_path / 'run'
    flags = (*_FLAGS, _RATES, *_ALL, '--epsilon=5', f'--data_dir={data_dir}', f'--output_dir={out}')
    _interrupt(monkeypatch, capsys, 2, *flags)
    path = out / 'tuning.json'
    content = path.read_text()
    record = json.loads(content)
    # Reaches epsilon 5 in the run alone.
    record['privacy']['noise_multiplier'] *= (_ROUNDS / (_ROUNDS + 2)) ** 0.5
    path.write_text(json.dumps(record))
    assert 'with its sigma' in commands.refused(capsys, tune, *flags)
    path.write_text(content)
    labels = data_dir / 't10k-labels-idx1-ubyte.gz'
    before = labels.read_bytes()
    small_data.write_idx(labels, np.zeros(20, np.uint8))
    assert 'began with other data' in commands.refused(capsys, tune, *flags)
    labels.write_bytes(before)
    assert _spent(out, 1)[1] == 1  # Refused before any round.
    # What an interrupted choice has spent is said before more is, with the target that it exceeds.
    status, printed, _ = commands.of_module(capsys, tune, *flags)
    assert status == 0 and printed.count('so that epsilon ends above --epsilon=5') == 2
    assert printed.count('6 rounds (3 of the choice): VALID') == 3

  def test_epsilon_flag_is_for_all_rounds(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    status, printed, err = commands.of_module(
        capsys, tune, *_FLAGS, _RATES, *_ALL, '--epsilon=5', '--seed=1', f'--data_dir={data_dir}',
        f'--output_dir={out}',
    )
    assert status == 0, err
    summary = json.loads((out / 'summary.json').read_text())
    assert 4.9 < summary['epsilon'] <= 5 and '(2 of the choice): SIMULATED' in printed

  def test_an_interrupted_choice_is_counted_and_made_anew_with_the_same_clients(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    out = tmp_path / 'run'
    flags = (*_FLAGS, _RATES, *_ALL, f'--data_dir={data_dir}', f'--output_dir={out}')
    with monkeypatch.context() as patch:
      def interrupt(*unused):
        raise errors.Interrupted(15)

      patch.setattr(vote.Vote, 'scores', interrupt)
      status, _, _ = commands.of_module(capsys, tune, *flags)
    before = json.loads((out / 'tuning.json').read_text())
    assert status == 143 and before['chosen'] is None
    assert [*before['ledgers'].values()] == [1]
    status, printed, err = commands.of_module(capsys, account, str(out))
    assert status == 0 and '1 round,' in printed, err
    single = [f for f in flags if f != _RATES]
    assert 'which chose none yet' in commands.refused(capsys, run, *single)
    assert commands.of_module(capsys, tune, *flags)[0] == 0
    assert json.loads((out / 'tuning.json').read_text())['seeds'] == before['seeds']
    expected, num = _spent(out, 1 / 1.4)
    summary = json.loads((out / 'summary.json').read_text())
    assert num == _ROUNDS + 3 and summary['epsilon'] == pytest.approx(expected, rel=2e-3)

  def test_a_signal_in_the_vote_ends_the_command_before_the_run(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    out = tmp_path / 'run'
    # After the trial and the vote.
    monkeypatch.setattr(signals.Signals, 'begin_round', _interrupting_in_round(3))
    status, _, _ = commands.of_module(
        capsys, tune, *_FLAGS, _RATES, *_ALL, f'--data_dir={data_dir}', f'--output_dir={out}'
    )
    assert status == 143 and not (out / 'config.json').exists()
    assert json.loads((out / 'tuning.json').read_text())['chosen'] is not None

  def test_the_choice_is_kept_before_anybody_sees_it(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    out = tmp_path / 'run'

    def interrupt(*unused):
      raise errors.Interrupted(15)

    monkeypatch.setattr(tune, '_scores_text', interrupt)
    status, _, _ = commands.of_module(
        capsys, tune, *_FLAGS, _RATES, *_ALL, f'--data_dir={data_dir}', f'--output_dir={out}'
    )
    record = json.loads((out / 'tuning.json').read_text())
    assert status == 143 and record['chosen'] == np.argmin(record['scores'])

  def test_a_simulated_choice_that_is_made_anew_has_other_seeds(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    flags = (*_FLAGS, _RATES, '--seed=1', f'--data_dir={data_dir}', f'--output_dir={tmp_path}')
    for _ in range(2):
      _interrupt(monkeypatch, capsys, 2, *flags)
    records = [ledger_lib.read(path) for path in tmp_path.glob('privacy_ledger.*')]
    assert len({record.seed_digest for record in records}) == len(records) == 2

  def test_rounds_of_a_simulated_choice_share_no_seed(self, data_dir, tmp_path):
    _, experiment = _experiment(data_dir, _RATES, '--seed=1')
    choice = _vote(experiment, tmp_path)
    all_seeds = [experiment.seeds, *(choice._with_own_seeds().seeds for _ in range(3))]
    assert all(seeds.public() == experiment.seeds.public() for seeds in all_seeds)
    assert len({seed for s in all_seeds for seed in (s.sampling, s.process)}) == 8
    _, experiment = _experiment(data_dir, _RATES)
    assert _vote(experiment, tmp_path)._with_own_seeds().seeds.process is None

  def test_dry_run_prints_the_cost_and_writes_nothing(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    status, printed, _ = commands.of_module(
        capsys, tune, *_FLAGS, _RATES, '--dry_run', f'--data_dir={data_dir}', f'--output_dir={out}'
    )
    assert status == 0 and '1 trial round and a vote' in printed and not out.exists()

  @pytest.mark.parametrize('flags, said', [
      (['--p=0.1'], 'There is one candidate'),
      (['--rounds={1,2}'], '--rounds has several values'),
      (['--noise_multiplier={1,2}'], '--noise_multiplier has several values'),
      (['--workers=1', '--workers=2', _RATES], '--workers has several values'),
      (['--server_learning_rate={8,8.0}'], 'There is one candidate'),
      (['--p', '0.1', _RATES], '--p is not of the form --FLAG=VALUE'),
      (['--epsilon_budget=3', _RATES], '--epsilon_budget is not a flag'),
      (['--noise=discrete_gaussian', _RATES], 'another epsilon for a vote'),
      (['--noise_multiplier=0', _RATES], 'needs no private choice'),
      (['--sampling=allocation', _RATES], 'whole block for each trial'),
      ([_RATES, '--overwrite'], '--overwrite is not a flag'),
  ])
  def test_what_a_vote_cannot_decide_is_refused(self, flags, said, capsys):
    assert re.search(said, commands.refused(capsys, tune, *_FLAGS, *flags))


def test_ballot_is_zero_without_examples_and_a_loss_that_is_not_finite_is_the_worst(data_dir):
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

  def update_of(*factors, num=None):
    stacks = tuple(np.stack([np.float32(f) * (w + 0.1) for f in factors]) for w in trainable)
    weights = Weights((tf.zeros([len(factors)]),), stacks)
    [update] = ballot.train(None, weights, (x[:num], y[:num]), None, None)
    assert abs(np.sum(update)) <= 1e-5 * np.abs(update).max()
    return list(update)

  x, y = experiment.data.clients[0]
  assert update_of(1, 2, num=0) == [0, 0] == update_of(np.inf, np.nan)
  assert update_of(1, 2) != [0, 0]
  # 1e6 stands for no loss nowhere: these losses are larger.
  assert update_of(np.nan, 1e6) == [0.5, -0.5] == update_of(np.inf, 1e6)
