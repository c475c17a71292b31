"""Tests of the command `python -m tasks.run`, in this process and as one of its own."""

import contextlib
import json
import math
import os
import re
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

import fedsmp_tff
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import account
from tasks import errors
from tasks import methods
from tasks.datasets import task as task_lib
from tests.support import commands
from tests.support import waiting


def test_unseeded_draws_are_refused_with_a_seed():
  was_on = config.is_op_determinism_enabled()
  config.enable_op_determinism()
  try:
    with pytest.raises(errors.InputError, match='--seed=0: the model draws random numbers'):
      with errors.refusing_unseeded_draws(0):
        tf.random.uniform([])
  finally:
    if not was_on:
      config.disable_op_determinism()


class TestExecution:

  # Without rounds: tests/tasks/training/test_warm_start.py.
  @pytest.mark.parametrize(
      'algorithm', [name for name in methods.NAMES if not methods.METHODS[name].fixed]
  )
  def test_every_algorithm_runs_and_reports(self, algorithm, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    flags = [f'--algorithm={algorithm}', *(['--public_examples=8'] if 'topk' in algorithm else [])]
    assert commands.main(commands.tiny(data_dir, out, *flags)) == 0
    captured = capsys.readouterr()
    printed = ' '.join(captured.out.split())
    private = methods.METHODS[algorithm].private
    assert ('NO PRIVACY' in printed) == (not private)
    assert 'CAN REMOVE IT' not in printed and 'simulated' not in captured.err
    # Once with its assumptions, and what was spent at the end.
    assert printed.count('3 rounds: VALID') == (2 if private else 0)
    assert printed.count('excludes tuning, other runs on these clients') == (1 if private else 0)
    assert 'honest reports' not in printed and 'mechanism' not in printed
    rows = commands.rows(out / 'metrics.csv')
    assert [row['round'] for row in rows] == ['0', '1', '2', '3']
    # Twelve clients, and slots for all; FedAvg takes exactly three.
    assert all(row['participants'] == ('12' if private else '3') for row in rows[1:])
    assert all(0 <= float(row['test_accuracy']) <= 1 for row in rows)
    if private:
      spec = spec_lib.PrivacySpec(12, 3, 3, 1.4, 1.0, 12**-1.1)
      for t, row in enumerate(rows):
        assert row['rounds_charged'] == row['round'] == str(t)
        # Before the end from a coarser grid: never less, hardly more.
        exact, epsilon = spec.epsilon(rounds=t), float(row['epsilon'])
        assert exact <= epsilon <= 1.002 * exact and (t < 3 or epsilon == exact)
        assert float(row['epsilon_paper']) == pytest.approx(spec.epsilon(accountants.PAPER, t))
      record = ledger_lib.read(out / 'privacy_ledger.jsonl')
      assert record.spec == spec and record.rounds == [0, 1, 2] and not record.seeded
      assert record.initial_weights == 'random' and not record.seed_digest
    else:
      # Without noise epsilon is infinite, whatever else the directory has.
      record = ledger_lib.read(out / 'privacy_ledger.jsonl')
      assert record.rounds == [0, 1, 2] and record.spec.epsilon() == math.inf
      assert not [name for name in rows[0] if 'epsilon' in name]
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['rounds'] == 3
    assert summary.get('guarantee_status') == ('valid' if private else None)
    accuracies = [float(row['test_accuracy']) for row in rows]
    best, best_round = max(accuracies), accuracies.index(max(accuracies))
    assert (summary['best_test_accuracy'], summary['best_round']) == (best, best_round)
    initial, final = accuracies[0], accuracies[-1]
    assert (summary['initial_test_accuracy'], summary['final_test_accuracy']) == (initial, final)
    assert summary['gain'] == final - initial
    assert (
        f'accuracy {100 * initial:.2f} -> {100 * final:.2f} %: {100 * (final - initial):+.2f} points'
        f' over random weights; best {100 * best:.2f} % (round {best_round})'
    ) in printed
    config = json.loads((out / 'config.json').read_text())
    assert config['dim'] == commands.DIM and config['algorithm'] == algorithm
    assert config.get('guarantee_status') == ('valid' if private else None)
    planned = config.get('epsilon_after_all_rounds'), config.get('epsilon_paper_after_all_rounds')
    assert planned == (
        (spec.epsilon(), spec.epsilon(accountants.PAPER)) if private else (None, None)
    )
    assert config['fedsmp_tff'] == fedsmp_tff.__version__ and 'numpy' in config['versions']
    assert config['command'][:3] == ['python', '-m', 'tasks.run']
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00', config['date'])
    assert summary['uplink_megabytes'] == pytest.approx(4 * config['num_kept'] * 3 * 3 / 12 / 1e6)
    with np.load(out / 'weights.npz') as weights:
      assert sum(weights[name].size for name in weights) == commands.DIM
    assert list(out.glob('events.out.tfevents.*'))
    assert len(commands.rows(out / 'timings.csv')) == 4

  def test_a_dry_run_prints_the_plan_and_writes_nothing(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'runs' / 'run'
    flags = ('--dry_run', '--epsilon=12')
    assert commands.main(commands.tiny(data_dir, out, *flags)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        'fedsmp_randk on tests.support.tiny_task, 3 rounds of 3 clients on average\n'
    )
    assert '\n  assumes    12 honest reports per round, of 12; secret cohorts; ' in printed
    assert '3 rounds: VALID' in printed and 'round 0/3' not in printed
    assert '; above 10 it promises little' in ' '.join(printed.split())
    assert not out.parent.exists()

  @pytest.mark.slow
  def test_a_seeded_run_is_equal_in_every_context(self, data_dir, tmp_path):
    stories = []
    for name, arguments in (
        ('one', ['--workers=1']),
        ('two devices', ['--devices=CPU:0,CPU:1']),
        ('two on ray', ['--runtime=ray', '--workers=2']),
    ):
      assert commands.main(
          commands.tiny(data_dir, tmp_path / name, '--seed=1', *arguments)
      ) == 0
      stories.append(commands.story(tmp_path / name))
    assert all(story == stories[0] for story in stories)
    commands.main(commands.tiny(data_dir, tmp_path / 'other', '--seed=2', '--workers=1'))
    other = commands.story(tmp_path / 'other')
    assert stories[0][0] != other[0] and stories[0][1] != other[1]

  def test_a_seeded_run_is_marked_simulated(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    monkeypatch.delenv('TF_DETERMINISTIC_OPS', raising=False)
    # The other test of this, without a seed, is `test_every_algorithm_runs_and_reports`.
    out = tmp_path / 'run'
    assert commands.main(commands.tiny(data_dir, out, '--seed=0')) == 0
    captured = capsys.readouterr()
    printed = ' '.join(captured.out.split())
    assert 'CAN REMOVE IT' in printed and ': VALID' not in printed
    assert os.environ['TF_DETERMINISTIC_OPS'] == '1'
    # The plan and the summary, the lines of progress, and the files.
    assert printed.count(': SIMULATED') == 2 and 'simulated' in captured.err
    config, summary = (
        json.loads((out / file).read_text()) for file in ('config.json', 'summary.json')
    )
    assert config['guarantee_status'] == summary['guarantee_status'] == 'simulated'
    record = ledger_lib.read(out / 'privacy_ledger.jsonl')
    # Ledgers know their clients by the task and by how its data were divided.
    assert record.data == f'tests.support.tiny_task divided as {config["split_digest"]}'
    assert record.seed_digest

  def test_a_spent_budget_ends_the_run_before_the_round(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    out = tmp_path / 'a'
    spec = spec_lib.PrivacySpec(12, 3, 3, 1.4, 1.0, 12**-1.1)
    arguments = [f'--epsilon_budget={spec.epsilon(rounds=2) + 0.01}']
    assert commands.main(commands.tiny(data_dir, out, *arguments)) == 1
    captured = capsys.readouterr()
    said = captured.err.splitlines()[-1]
    assert said.startswith('tasks.run: Round 3 does not begin: it would bring epsilon to'), said
    assert 'above the budget' in said and '2 of 3 rounds done' in captured.out
    assert ledger_lib.read(out / 'privacy_ledger.jsonl').rounds == [0, 1]
    assert (out / 'weights.npz').exists() and (out / 'checkpoints' / 'round_2.npz').exists()
    # The same command spends nothing more. With a larger budget the run resumes.
    assert commands.main(commands.tiny(data_dir, out, *arguments)) == 1
    assert ledger_lib.read(out / 'privacy_ledger.jsonl').rounds == [0, 1]
    assert commands.main(commands.tiny(data_dir, out, '--epsilon_budget=1000')) == 0
    assert ledger_lib.read(out / 'privacy_ledger.jsonl').rounds == [0, 1, 2]
    # The pool is cut in another way without a seed: a client's images are several clients' now.
    given = commands.tiny(data_dir, out, '--overwrite', *arguments)
    capsys.readouterr()
    assert 'they have other clients (' in commands.say(capsys, *given[1:])
    assert ledger_lib.read(out / 'privacy_ledger.jsonl').rounds == [0, 1, 2]
    # The rounds of an overwritten run of the same clients count.
    former = ledger_lib.read(out / 'privacy_ledger.jsonl')
    digest = former.data.removeprefix('tests.support.tiny_task divided as ')
    monkeypatch.setattr(task_lib, 'digest_of_split', lambda *parts: digest)
    assert commands.main([*given, f'--epsilon_budget={spec.epsilon(rounds=3) + 0.01}']) == 1
    assert 'Round 1 does not begin' in capsys.readouterr().err
    assert len([*out.glob('privacy_ledger.*.jsonl')]) == 1

  def test_a_budget_refuses_a_run_with_the_noise_of_another(self, data_dir, tmp_path, capsys):
    given = commands.tiny(data_dir, tmp_path / 'a', '--seed=0')
    assert commands.main(given) == 0
    assert commands.main([*given, '--overwrite', '--epsilon_budget=1000']) == 1
    assert 'with the same seed: their noise is equal' in capsys.readouterr().err

  def test_a_budget_of_fresh_noise_includes_no_seeded_run(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    monkeypatch.setattr(task_lib, 'digest_of_split', lambda *parts: 'one division')
    out = tmp_path / 'a'
    assert commands.main(commands.tiny(data_dir, out, '--seed=0')) == 0
    capsys.readouterr()
    given = commands.tiny(data_dir, out, '--overwrite', '--epsilon_budget=1000')
    assert 'anyone who knows its seed can remove its noise' in commands.say(capsys, *given[1:])
    assert (out / 'summary.json').exists()

  def test_a_run_without_noise_leaves_its_directory_no_budget(
      self, data_dir, tmp_path, capsys, monkeypatch
  ):
    monkeypatch.setattr(task_lib, 'digest_of_split', lambda *parts: 'one division')
    out = tmp_path / 'a'
    assert commands.main(commands.tiny(data_dir, out, '--algorithm=fedavg')) == 0
    given = commands.tiny(data_dir, out, '--overwrite')
    before = (out / 'weights.npz').read_bytes()
    capsys.readouterr()
    said = commands.say(capsys, *given[1:], '--epsilon_budget=1000')
    assert '--epsilon_budget=1000 is spent' in said and 'run without noise' in said
    assert (out / 'weights.npz').read_bytes() == before
    assert commands.main(given) == 0
    capsys.readouterr()
    status, printed, _ = commands.of_module(capsys, account, f'--ledger={out}')
    assert status == 0 and 'Do not quote an epsilon' in printed and 'it is infinite' in printed

  def test_a_run_without_rounds_spends_no_budget(self, data_dir, tmp_path, capsys, monkeypatch):
    # Its sampling is not the next run's, and its seed is known: a round of it would be refused.
    monkeypatch.setattr(task_lib, 'digest_of_split', lambda *parts: 'one division')
    out = tmp_path / 'a'
    without = ('--rounds=0', '--seed=0', '--sampling=fixed_size')
    assert commands.main(commands.tiny(data_dir, out, *without)) == 0
    given = commands.tiny(data_dir, out, '--overwrite', '--epsilon_budget=1000', '--dry_run')
    assert commands.main(given) == 0

  def test_paper_epsilon_is_for_the_paper_population(self, data_dir, tmp_path, capsys):
    arguments = [
        '--flagfile=tasks/experiments/paper/shakespeare.flags', '--algorithm=dp_fedavg',
        '--rounds=40',
    ]
    out = f'--output_dir={tmp_path / "a"}'
    assert commands.main(['run', *arguments, '--noise_multiplier=0.9', '--dry_run', out]) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    found = re.search(r'epsilon = (\S+), delta = \S+ for (\S+) clients, 40 rounds: VALID', printed)
    of_data, of_paper = (
        spec_lib.PrivacySpec(n, 10, 40, 0.9, 1.0, n**-1.1, sampling='fixed_size')
        for n in (int(found[2].replace(',', '')), 10**9)
    )
    assert found[1] == f'{of_data.epsilon():.4g}' and of_data.population < 2000
    of_paper = of_paper.epsilon(accountants.PAPER)
    quoted = f"Not for quoting: the paper's RDP accountant, 1,000,000,000 clients: {of_paper:.4g}"
    assert quoted in printed

  def test_an_allocation_sends_what_its_blocks_have(self, data_dir, tmp_path):
    # 12 clients with 5 per round have blocks of two rounds: each client sends once in a block.
    flags = ('--sampling=allocation', '--clients_per_round=5', '--rounds=2', '--eval_examples=1')
    assert commands.main(commands.tiny(data_dir, tmp_path, *flags)) == 0
    config, summary = (
        json.loads((tmp_path / name).read_text()) for name in ('config.json', 'summary.json')
    )
    assert summary['uplink_megabytes'] == pytest.approx(4 * config['num_kept'] / 1e6)

  def test_integer_noise_halves_the_uplink(self, data_dir, tmp_path, capsys):
    arguments = ['--seed=1', '--verbose', f'--p={50 / commands.DIM}', '--noise=discrete_gaussian']
    for name, workers in (('a', 1), ('b', 2)):
      assert commands.main(commands.tiny(
          data_dir, tmp_path / name, *arguments, f'--workers={workers}'
      )) == 0
    assert commands.story(tmp_path / 'a') == commands.story(tmp_path / 'b')
    printed = ' '.join(capsys.readouterr().out.split())
    assert '50 integers modulo 2^16, after a random rotation' in printed
    summary = json.loads((tmp_path / 'a' / 'summary.json').read_text())
    assert summary['uplink_megabytes'] == pytest.approx(2 * 50 * 3 * 3 / 12 / 1e6)
    assert 'SIMULATION' in printed
    rows = commands.rows(tmp_path / 'a' / 'metrics.csv')
    assert 'epsilon_paper' not in rows[0] and float(rows[-1]['epsilon']) > 0

  def test_adaptive_clipping_pays_for_votes(self, data_dir, tmp_path, capsys):
    assert commands.main(commands.tiny(
        data_dir, tmp_path / 'a', '--clip_quantile=0.3', '--rounds=8', '--seed=1', '--verbose'
    )) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert 'C follows the 0.3 quantile of the norms, whose votes raise sigma' in printed
    assert 'raise sigma from 1.4 to 1.446 at' in printed  # By 1 / sqrt(1 - 0.25^2).
    rows = commands.rows(tmp_path / 'a' / 'metrics.csv')[1:]
    assert len({row['clipping_norm'] for row in rows}) == 8
    # The vote is paid for.
    spec = spec_lib.PrivacySpec(12, 3, 8, 1.4, 1.0, 12**-1.1)
    assert float(rows[-1]['epsilon']) == pytest.approx(spec.epsilon())

  @pytest.mark.parametrize(
      'runtime, children', [('local', 0), pytest.param('ray', 3, marks=pytest.mark.slow)]
  )
  def test_the_command_leaves_no_process_behind(self, data_dir, tmp_path, runtime, children):
    command = commands.command(commands.tiny(data_dir, tmp_path / 'a', f'--runtime={runtime}'))
    seen = set()
    while command.poll() is None:
      with contextlib.suppress(psutil.NoSuchProcess):
        seen |= {c.pid for c in psutil.Process(command.pid).children(recursive=True)}
      time.sleep(0.05)
    # No other process holds its output open.
    out, err = commands.ended(command)
    assert '3 of 3 rounds done' in out and 'round 3/3' in err
    assert len(seen) >= children
    waiting.until_ended(seen)
