"""Tests of the command `python -m tasks.run`, in this process and as one of its own."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np
import psutil
import pytest

import fedsmp_tff
from fedsmp_tff.privacy import budget as budget_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import account
from tasks import datasets
from tasks.config import options as options_lib
from tasks.config import runtime as runtime_lib
from tasks.config import settings
from tasks.config import task_flags
from tasks.training import run_directory
from tests.support import commands
from tests.support import waiting


def _ray_node(ip, *arguments):
  """Starts a Ray node; returns its processes, which `ray start` leaves behind.

  Each node has an address of its own: of two on one, the driver joins either.
  """
  mark = {'NODE_OF_TEST': f'{os.getpid()} {ip}'}  # Inherited; other tests may run now.
  subprocess.run(
      [
          os.path.join(os.path.dirname(sys.executable), 'ray'), 'start', '--num-cpus=1',
          f'--node-ip-address={ip}', '--disable-usage-stats', *arguments,
      ],
      check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
      env={**os.environ, **mark},
  )
  started = []
  for process in psutil.process_iter():
    # Some end soon, some are not ours to look into.
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
      if process.environ().items() >= mark.items():
        started.append(process)
  return started


def _command_line(process):
  try:
    return ' '.join(process.cmdline())
  except psutil.NoSuchProcess:
    return ''


def _kill(processes):
  for process in processes:
    with contextlib.suppress(psutil.NoSuchProcess):
      for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
          child.kill()
      process.kill()


class TestComputation:
  """What is refused, before data are loaded, and how."""

  @pytest.mark.parametrize(
      'arguments, sentence',
      [
          ([], '--task is not set'),
          (['--task=mnist'], 'task.*mnist'),
          (['--algorithm=dpsgd'], 'algorithm.*dpsgd'),
          (['--p=0'], r'--p must be a number > 0 and <= 1; got 0\.0'),
          (['--p=2'], r'--p must be a number > 0 and <= 1; got 2\.0'),
          (['--p=nan'], '--p must be .*; got nan'),
          (['--p=x'], 'flag --p=x'),
          (
              ['--noise_multiplier=-1'],
              r'--noise_multiplier must be a finite number >= 0; got -1\.0',
          ),
          (['--noise_multiplier=inf'], '--noise_multiplier must be a finite number >= 0; got inf'),
          (['--epsilon=nan'], '--epsilon must be .*; got nan'),
          (['--epsilon=0'], r'--epsilon must be a finite number > 0; got 0\.0'),
          (['--epsilon=1', '--noise_multiplier=1'], 'exclude each other'),
          (['--clip=0'], r'--clip must be a finite number > 0; got 0\.0'),
          (['--delta=1'], '--delta must be a number > 0 and < 1; got 1.0'),
          (['--delta=nan'], '--delta must be .*; got nan'),
          (['--rounds=0'], '--rounds must be an integer >= 1; got 0'),
          (['--clients_per_round=0'], '--clients_per_round must be .*; got 0'),
          (['--sampling=shuffle'], 'sampling.*shuffle'),
          (['--noise=laplace'], 'noise.*laplace'),
          (['--clip_quantile=1'], '--clip_quantile must be .* < 1; got 1.0'),
          (['--algorithm=fedavg', '--clip_quantile=0.5'], '--clip_quantile has no effect'),
          (['--clients_per_round=6001'], '6001 is more than the 6000 clients'),
          (['--learning_rate=0'], '--learning_rate must be .* > 0; got 0.0'),
          (['--momentum=1'], '--momentum must be .* < 1; got 1.0'),
          (['--batch_size=0'], '--batch_size must be .* >= 1; got 0'),
          (['--seed=-1'], '--seed must be an integer >= 0 .*; got -1'),
          (['--fashion_mnist_filters=3,x'], '--fashion_mnist_filters=3,x'),
          (['--fashion_mnist_clients=0'], 'fashion_mnist_clients'),
          (
              ['--svhn_dir=/x'],
              '--svhn_dir has no effect unless --task=svhn; drop it for --task=fashion_mnist',
          ),
          (['--shakespeare_data=tff'], '--shakespeare_data has no effect unless --task=shake'),
          (
              ['--algorithm=fedavg', '--p=0.1'],
              '--p has no effect unless --algorithm=.* or fedavg_topk;',
          ),
          (['--algorithm=dp_fedavg', '--p=0.1'], '--p has no effect'),
          (['--algorithm=fedavg', '--noise=discrete_gaussian'], '--noise has no effect'),
          (
              ['--algorithm=fedavg_topk', '--clip=1'],
              '--clip has no effect unless --algorithm=.* or dp_fedavg;',
          ),
          (['--algorithm=fedavg', '--delta=0.1'], '--delta has no effect'),
          (['--algorithm=fedsmp_randk', '--public_clients=1'], '--public_clients has no effect'),
          (['--algorithm=fedsmp_released', '--public_clients=1'], '--public_clients has no effect'),
          (['--public_clients=-1'], '--public_clients must be an integer >= 0; got -1'),
          (['--algorithm=fedsmp_randk', '--released_weight=1'], '--released_weight has no effect'),
          (['--released_weight=-1'], r'--released_weight must be .* >= 0 .*; got -1\.0'),
          (['--clip_schedule=learning_rate', '--clip_quantile=0.5'], 'exclude each other'),
          (['--held_out=0'], '--held_out must be an integer >= 1; got 0'),
          (['--recipe=worst'], '--recipe=worst is not a recipe of --task=fashion_mnist'),
          (['--output_dir=/dev/null/x'], '--output_dir=/dev/null/x can\'t be written'),
          (['--fashion_mnist_dir=/none'], '/none/train-images-idx3-ubyte.gz does not'),
          (['--runtime=tpu'], 'runtime.*tpu'),
          (['--workers=0'], '--workers must be an integer >= 1; got 0'),
          (['--devices=GPU:9'], "--devices=GPU:9: .*'GPU:9', which TensorFlow does not see"),
          (['--devices='], '--devices=: .*empty'),
          (['--runtime=ray', '--devices=GPU:0'], '--devices has no effect unless --runtime=local;'),
          (['--client_timeout=3'], '--client_timeout has no effect unless --runtime=ray;'),
          (['--ray_address=auto'], '--ray_address has no effect unless --runtime=ray;'),
          (
              ['--runtime=ray', '--client_timeout=nan'],
              '--client_timeout must be a finite number > 0; got nan',
          ),
          (['--runtime=ray', '--ray_address=127.0.0.1:1'], 'no Ray cluster answers'),
          (['--flagfile=/none/flags'], '/none/flags'),
          (['--no_such_flag=1'], 'no_such_flag'),
          (['stray'], "'stray' is not a flag"),
      ],
  )
  def test_one_sentence_and_status_2(self, capsys, tmp_path, arguments, sentence):
    where = [] if any('output_dir' in a for a in arguments) else [
        f'--output_dir={tmp_path}/run'
    ]
    task = [] if not arguments or arguments[0].startswith('--task') else [
        '--task=fashion_mnist'
    ]
    if not any('_dir=/none' in a for a in arguments):
      # Data that can't be loaded: the flag must be refused first.
      task += ['--fashion_mnist_dir=/never/read'] if task else []
    said = commands.say(capsys, *task, *where, *arguments)
    assert re.search(sentence, said), said
    assert '/never/read' not in said
    assert not (tmp_path / 'run').exists()

  def test_a_flagfile_with_an_unknown_flag_is_named(self, capsys, tmp_path):
    path = tmp_path / 'flags'
    path.write_text('--task=fashion_mnist\n--raunds=3\n')
    said = commands.say(capsys, f'--flagfile={path}')
    assert "Unknown command line flag 'raunds'" in said and f'in {path};' in said

  def test_epsilon_and_public_examples_that_can_not_be(self, capsys, data_dir, tmp_path):
    tiny = commands.tiny(data_dir, tmp_path / 'run')[1:]
    assert 'No noise multiplier' in commands.say(capsys, *tiny, '--epsilon=1e-12', '--delta=1e-9')
    assert '--public_examples=60' in commands.say(capsys, *tiny, '--public_examples=60')
    assert '--public_clients=9 is more than the 8 public examples' in commands.say(
        capsys, *tiny, '--public_clients=9'
    )
    assert not (tmp_path / 'run').exists()

  def test_help_is_the_ten_flags_that_most_runs_need(self, capsys):
    assert commands.main(['run', '--help']) == 0
    text = capsys.readouterr().out
    assert re.findall(r'^  --(\w+): ', text, re.MULTILINE) == [
        'task', 'algorithm', 'p', 'rounds', 'clients_per_round', 'seed', 'clip', 'epsilon', 'recipe',
        'output_dir',
    ]
    assert text.endswith('All flags: --helpfull\n')
    assert len(text.splitlines()) < 60
    # What it prints of a bare command is what a bare command runs.
    listed = re.findall(r'^  --task=(\w+): (--.*(?:\n      .*)*)', text, re.MULTILINE)
    assert {task for task, _ in listed} == {'shakespeare', 'fashion_mnist'}
    for task, flags in listed:
      bare = settings.parse([f'--task={task}'], default_recipe='best')[0]
      typed = settings.parse([f'--task={task}', '--recipe=none', *flags.split()])[0]
      assert dataclasses.replace(bare, recipe=None) == typed

  def test_help_names_every_flag_once_under_its_group(self, capsys):
    assert commands.main(['run', '--helpfull']) == 0
    text = capsys.readouterr().out
    tables = (settings.RunSettings, settings.OutputSettings, runtime_lib.RuntimeSettings)
    found = {}
    for title, body in re.findall(r'^(\S.*):\n((?:  .*\n)+)', text, re.MULTILINE):
      for name in re.findall(r'^  --(\w+): ', body, re.MULTILINE):
        assert name not in found
        found[name] = title
    for table in tables:
      for name, option in options_lib.options_of(table).items():
        assert found.pop(name) == option.group
    assert found.pop('row') == found.pop('recipe') == found.pop('config') == 'What to run'
    assert found == {
        name: f'Only for --task={task}'
        for task in datasets.TASKS for name in task_flags.names(task)
    }
    assert 'repeat this option' not in text


class TestExecution:

  # Without rounds there is another: tests/tasks/training/test_warm_start.py.
  @pytest.mark.parametrize(
      'algorithm', [name for name, found in settings.ALGORITHMS.items() if found.federated]
  )
  def test_every_algorithm(self, algorithm, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    status = commands.main(
        commands.tiny(data_dir, out, f'--algorithm={algorithm}')
        if not algorithm.endswith('topk')
        else [*commands.tiny(data_dir, out), f'--algorithm={algorithm}']
    )
    printed = ' '.join(capsys.readouterr().out.split())
    assert status == 0
    private = settings.ALGORITHMS[algorithm].private
    assert ('NO PRIVACY' in printed) == (not private)
    # Once with its assumptions, and what was spent at the end.
    assert printed.count('3 rounds: VALID') == (2 if private else 0)
    assert printed.count('assumes: honest participants') == (1 if private else 0)
    rows = commands.rows(out / 'metrics.csv')
    assert [row['round'] for row in rows] == ['0', '1', '2', '3']
    # Twelve clients, and seats for all; FedAvg takes exactly three.
    assert all(row['participants'] == ('12' if private else '3') for row in rows[1:])
    assert all(0 <= float(row['test_accuracy']) <= 1 for row in rows)
    if private:
      spec = spec_lib.PrivacySpec(12, 3, 3, 1.4, 1.0, 12**-1.1)
      for t, row in enumerate(rows):
        assert row['rounds_charged'] == row['round'] == str(t)
        assert float(row['epsilon']) == pytest.approx(spec.epsilon(rounds=t))
        assert float(row['epsilon_paper']) == pytest.approx(spec.epsilon('paper', t))
      record = ledger_lib.read(out / 'privacy_ledger.jsonl')
      assert record.spec == spec and record.rounds == [0, 1, 2] and not record.seeded
      assert record.initial_weights == 'random'
    else:
      assert not (out / 'privacy_ledger.jsonl').exists()
      assert not [name for name in rows[0] if 'epsilon' in name]
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['rounds'] == 3
    assert summary['best_test_accuracy'] == max(
        float(row['test_accuracy']) for row in rows
    )
    assert summary['final_test_accuracy'] == float(rows[-1]['test_accuracy'])
    config = json.loads((out / 'config.json').read_text())
    assert config['dim'] == commands.DIM and config['algorithm'] == algorithm
    record = config['record']
    assert record['fedsmp_tff'] == fedsmp_tff.__version__ and record['processors'] >= 1
    assert record['command'][:3] == ['python', '-m', 'tasks.run']
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00', record['date'])
    assert record['seconds'] > sum(
        float(row['round_seconds']) for row in commands.rows(out / 'timings.csv')
    )
    assert record['git_commit'] is None or re.fullmatch('[0-9a-f]{40}', record['git_commit'])
    kept = commands.DIM if algorithm in ('fedavg', 'dp_fedavg') else config['num_kept']
    assert summary['uplink_megabytes'] == pytest.approx(
        4 * kept * 3 * 3 / 12 / 1e6
    )
    with np.load(out / 'weights.npz') as weights:
      assert sum(weights[name].size for name in weights) == commands.DIM
    assert list(out.glob('events.out.tfevents.*'))
    assert len(commands.rows(out / 'timings.csv')) == 4

  def test_a_dry_run_prints_the_plan_and_writes_nothing(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'runs' / 'run'
    assert commands.main(commands.tiny(data_dir, out, '--dry_run')) == 0
    printed = capsys.readouterr().out
    assert printed.startswith('fedsmp_topk on fashion_mnist, 3 rounds')
    assert '3 rounds: VALID' in printed and 'round 0/3' not in printed
    assert not out.parent.exists()

  def test_one_seed_one_story(self, data_dir, tmp_path):
    stories = []
    for name, arguments in (
        ('one', ['--workers=1']),
        ('two threads', ['--workers=2']),
        ('two devices', ['--devices=CPU:0,CPU:1']),
        ('two on ray', ['--runtime=ray', '--workers=2']),
    ):
      assert commands.main(commands.tiny(data_dir, tmp_path / name, '--seed=1', *arguments)) == 0
      stories.append(commands.story(tmp_path / name))
    assert all(story == stories[0] for story in stories)
    commands.main(commands.tiny(data_dir, tmp_path / 'other', '--seed=2'))
    other = commands.story(tmp_path / 'other')
    assert stories[0][0] != other[0] and stories[0][1] != other[1]

  def test_a_seeded_run_says_that_its_noise_can_be_removed(
      self, data_dir, tmp_path, capsys
  ):
    verdicts = []
    for name, arguments in (('a', ['--seed=1']), ('b', [])):
      out = tmp_path / name
      commands.main(commands.tiny(data_dir, out, *arguments))
      captured = capsys.readouterr()
      printed = ' '.join(captured.out.split())
      assert ('CAN REMOVE IT' in printed) == bool(arguments)
      # The plan and the summary, the lines of progress, and the files.
      would = 'WOULD BE VALID WITH FRESH NOISE'
      assert printed.count(would) == (2 if arguments else 0)
      assert printed.count(': VALID') == (0 if arguments else 2)
      assert ('would be valid with fresh noise' in captured.err) == bool(arguments)
      verdicts.append({
          json.loads((out / file).read_text())['verdict']
          for file in ('config.json', 'summary.json')
      })
      record = ledger_lib.read(out / 'privacy_ledger.jsonl')
      # Ledgers know their clients by the task and by how its data were divided.
      digest = json.loads((out / 'config.json').read_text())['split_digest']
      assert record.data == f'fashion_mnist divided as {digest}'
      assert bool(record.seed_digest) == bool(arguments)
    assert verdicts == [{'would be valid with fresh noise'}, {'valid'}]

  def test_runs_of_one_seed_are_not_composed(self, data_dir, tmp_path, capsys):
    # Other flags, the same noise.
    commands.main(commands.tiny(data_dir, tmp_path / 'a', '--seed=1', '--rounds=1'))
    commands.main(commands.tiny(data_dir, tmp_path / 'b', '--seed=1', '--rounds=2', '--clip=0.3'))
    capsys.readouterr()
    paths = [f'--ledger={tmp_path / "a"}', str(tmp_path / 'b')]
    status, out, err = commands.of_module(capsys, account, *paths)
    assert status == 1 and 'with the same seed' in err and 'epsilon =' not in out

  @pytest.mark.slow  # Privacy loss distributions at small sigma.
  def test_an_epsilon_above_10_warns_once(self, data_dir, tmp_path, capsys):
    for arguments, sentence in (
        (['--epsilon=12'], '--epsilon=12 is above 10, which promises little.'),
        (['--noise_multiplier=0.2', '--dry_run'], 'the run will spend epsilon = '),
        (['--epsilon=5', '--dry_run'], None),
    ):
      commands.main(commands.tiny(data_dir, tmp_path / arguments[0], '--rounds=1', *arguments))
      captured = capsys.readouterr()
      assert captured.err.count('promises little') == bool(sentence)
      printed = ' '.join(captured.out.split())
      # In the plan, and where a run has spent it.
      expected = 2 - ('--dry_run' in arguments) if sentence else 0
      assert printed.count('; above 10 it promises little') == expected
      if sentence:
        assert sentence in captured.err

  def test_a_spent_budget_ends_the_run_before_the_round(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'a'
    spec = spec_lib.PrivacySpec(12, 3, 3, 1.4, 1.0, 12**-1.1)
    arguments = [f'--epsilon_budget={spec.epsilon(rounds=2) + 0.01}']
    assert commands.main(commands.tiny(data_dir, out, *arguments)) == 1
    captured = capsys.readouterr()
    said = captured.err.splitlines()[-1]
    assert said.startswith('tasks.run: Round 3 does not begin: it would bring epsilon to'), said
    assert 'above the budget' in said and '2 of 3 rounds done' in captured.out
    assert ledger_lib.read(out / 'privacy_ledger.jsonl').rounds == [0, 1]
    assert (out / 'weights.npz').exists() and (out / 'checkpoints' / 'round_2').exists()
    # Again: nothing more is spent. With a larger budget the run resumes.
    assert commands.main(commands.tiny(data_dir, out, *arguments)) == 1
    assert ledger_lib.read(out / 'privacy_ledger.jsonl').rounds == [0, 1]
    assert commands.main(commands.tiny(data_dir, out, '--epsilon_budget=1000')) == 0
    assert ledger_lib.read(out / 'privacy_ledger.jsonl').rounds == [0, 1, 2]
    # The pool is cut in another way without a seed: a client's images are several clients' now.
    given = commands.tiny(data_dir, out, '--overwrite', *arguments)
    capsys.readouterr()
    assert 'they have other clients (' in commands.say(capsys, *given[1:])
    assert ledger_lib.read(out / 'privacy_ledger.jsonl').rounds == [0, 1, 2]
    # What an overwritten run of the same clients has spent counts.
    path, former = out / 'privacy_ledger.jsonl', out / 'privacy_ledger.1.jsonl'
    path.rename(former)
    with run_directory.RunDirectory(str(out), overwrite=False) as again:
      again.check_clients(ledger_lib.read(former).data)
      ledger = again.ledger(
          spec, 'another', None, 'a name', 'random', began=False,
          epsilon_budget=spec.epsilon(rounds=2),
      )
      with ledger, pytest.raises(budget_lib.BudgetSpentError):
        ledger.begin(0)

  def test_the_papers_figure_is_for_the_papers_population(self, data_dir, tmp_path, capsys):
    arguments = ['--task=shakespeare', '--recipe=paper', '--algorithm=dp_fedavg', '--rounds=40']
    out = f'--output_dir={tmp_path / "a"}'
    assert commands.main(['run', *arguments, '--noise_multiplier=0.9', '--dry_run', out]) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    found = re.search(r'epsilon = (\S+), delta = \S+, n = (\S+), 40 rounds: VALID', printed)
    of_data, of_paper = (
        spec_lib.PrivacySpec(n, 10, 40, 0.9, 1.0, n**-1.1, sampling='fixed')
        for n in (int(found[2].replace(',', '')), 10**9)
    )
    assert found[1] == f'{of_data.epsilon():.4g}' and of_data.population < 2000
    assert (
        "in the paper's accounting (RDP, Poisson sampling), for n = 1,000,000,000:"
        f' {of_paper.epsilon("paper"):.4g}'
    ) in printed

  def test_epsilon_is_reached(self, data_dir, tmp_path, capsys):
    for name, options in (
        ('a', ['--delta=1e-3']), ('b', ['--delta=1e-3', '--noise=discrete_gaussian'])
    ):
      arguments = ['--epsilon=3', '--rounds=1', *options]
      commands.main(commands.tiny(data_dir, tmp_path / name, *arguments))
      config = json.loads((tmp_path / name / 'config.json').read_text())
      assert config['epsilon_after_all_rounds'] == pytest.approx(3, abs=1e-3)
      assert config['privacy']['noise_multiplier'] > 0.5
      row = commands.rows(tmp_path / name / 'metrics.csv')[-1]
      assert float(row['epsilon']) <= 3

  def test_integer_noise_halves_the_uplink(self, data_dir, tmp_path, capsys):
    arguments = ['--seed=1', f'--p={50 / commands.DIM}', '--noise=discrete_gaussian']
    for name, workers in (('a', 1), ('b', 2)):
      assert commands.main(commands.tiny(
          data_dir, tmp_path / name, *arguments, f'--workers={workers}'
      )) == 0
    assert commands.story(tmp_path / 'a') == commands.story(tmp_path / 'b')
    printed = ' '.join(capsys.readouterr().out.split())
    assert '50 integers modulo 2^16, after a random rotation' in printed
    summary = json.loads((tmp_path / 'a' / 'summary.json').read_text())
    assert summary['uplink_megabytes'] == pytest.approx(2 * 50 * 3 * 3 / 12 / 1e6)
    assert 'SIMULATION' in summary['randomness']
    rows = commands.rows(tmp_path / 'a' / 'metrics.csv')
    assert 'epsilon_paper' not in rows[0] and float(rows[-1]['epsilon']) > 0

  def test_adaptive_clipping(self, data_dir, tmp_path, capsys):
    assert commands.main(commands.tiny(
        data_dir, tmp_path / 'a', '--clip_quantile=0.3', '--rounds=8', '--seed=1'
    )) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert 'C follows the 0.3 quantile of the norms, within epsilon' in printed
    rows = commands.rows(tmp_path / 'a' / 'metrics.csv')[1:]
    assert len({row['clipping_norm'] for row in rows}) == 8
    # The vote is paid for.
    spec = spec_lib.PrivacySpec(12, 3, 8, 1.4, 1.0, 12**-1.1)
    assert float(rows[-1]['epsilon']) == pytest.approx(spec.epsilon())

  @pytest.mark.parametrize(
      'runtime, children', [('local', 0), ('ray', 3)]
  )
  def test_the_command_leaves_no_process_behind(
      self, data_dir, tmp_path, runtime, children
  ):
    command = commands.command(commands.tiny(data_dir, tmp_path / 'a', f'--runtime={runtime}'))
    seen = set()
    while command.poll() is None:
      with contextlib.suppress(psutil.NoSuchProcess):
        seen |= {c.pid for c in psutil.Process(command.pid).children(recursive=True)}
      time.sleep(0.05)
    # Its output ends with it: nobody else holds it open.
    out, err = command.communicate(timeout=waiting.SECONDS)
    assert command.returncode == 0
    assert '3 of 3 rounds done' in out and 'round 3/3' in err
    assert 'Traceback' not in err
    assert len(seen) >= children
    waiting.until_ended(seen)

  def test_a_failed_start_says_one_sentence_and_no_traceback(self):
    command = commands.command(['run', '--task=fashion_mnist', '--p=0'])
    out, err = command.communicate(timeout=waiting.SECONDS)
    assert command.returncode == 2 and out == ''
    assert err == 'tasks.run: --p must be a number > 0 and <= 1; got 0.0.\n'


@pytest.mark.slow
class TestRayNodes:

  def test_a_killed_node_changes_nothing(self, data_dir, tmp_path):
    # Enough steps that a round takes seconds, all 12 clients in it.
    longer = [
        '--seed=1', '--clients_per_round=12', '--local_epochs=200', '--rounds=4',
    ]
    undisturbed = commands.tiny(data_dir, tmp_path / 'local', *longer)
    undisturbed.remove('--local_epochs=1')
    # A process of its own: TensorFlow reads some of its settings once.
    command = commands.command(undisturbed)
    _, err = command.communicate(timeout=waiting.SECONDS)
    assert command.returncode == 0, err
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      port = free.getsockname()[1]
    address = f'127.0.0.1:{port}'
    # A directory of their own: Ray remembers the last cluster of a machine in the
    # usual one. Not pytest's: the names of sockets are short.
    directory = tempfile.mkdtemp(prefix='ray')
    nodes = _ray_node(
        '127.0.0.1', '--head', f'--port={port}', '--include-dashboard=false', f'--temp-dir={directory}'
    )
    try:
      other = _ray_node('127.0.0.2', f'--address={address}')
      # Ray notes which node a machine is, for drivers: the last one that started there.
      # On two machines the driver's would be the first.
      note = pathlib.Path(directory) / 'session_latest' / 'node_ip_address.json'
      note.write_text(json.dumps({'node_ip_address': '127.0.0.1'}))
      nodes += other
      out = tmp_path / 'ray'
      arguments = commands.tiny(data_dir, out, *longer, '--runtime=ray', f'--ray_address={address}')
      arguments.remove('--local_epochs=1')
      command = commands.command(arguments)
      [raylet] = [p for p in other if 'raylet/raylet' in _command_line(p)]

      def clients_of_the_other_node():
        return [c for c in raylet.children() if 'Actor.run' in _command_line(c)]

      # In the middle of a round: a client runs on the node that dies.
      while not (out / 'timings.csv').exists() or len(commands.rows(out / 'timings.csv')) < 2:
        assert command.poll() is None, command.communicate()
        time.sleep(0.05)
      while not clients_of_the_other_node():
        assert command.poll() is None
      _kill([raylet])
      assert len(commands.rows(out / 'timings.csv')) < 5  # It is not over yet.
      printed, err = command.communicate(timeout=waiting.SECONDS)
      assert command.returncode == 0, err
      assert '4 of 4 rounds done' in printed
    finally:
      _kill(nodes)
      shutil.rmtree(directory, ignore_errors=True)
    assert commands.story(out) == commands.story(tmp_path / 'local')


@pytest.mark.slow
class TestRealData:

  @pytest.mark.skipif(
      not os.path.isdir('/usr/share/datasets/fashion-mnist'),
      reason='needs Debian\'s dataset-fashion-mnist',
  )
  def test_fashion_mnist_is_learnt(self, tmp_path):
    out = tmp_path / 'run'
    arguments = [
        '--task=fashion_mnist', '--recipe=none', '--p=0.005', '--rounds=4', '--seed=1',
        '--public_examples=300', '--clients_per_round=30', '--noise_multiplier=0.4', '--local_epochs=4',
    ]
    assert commands.main(['run', *arguments, f'--output_dir={out}']) == 0
    rows = commands.rows(out / 'metrics.csv')
    assert float(rows[0]['test_accuracy']) < 0.2
    # With unmasked or unscaled noise it stays at chance.
    assert float(rows[-1]['test_accuracy']) > 0.3
    assert all(row['released'] == '1' for row in rows[1:])

  def test_shakespeare_is_learnt(self, tmp_path):
    out = tmp_path / 'run'
    arguments = [
        '--task=shakespeare', '--recipe=none', '--algorithm=fedavg_topk', '--rounds=4',
        '--public_examples=100',
    ]
    smaller = ['--shakespeare_lstm_units=64,64', '--eval_examples=200', '--seed=1']
    assert commands.main(['run', *arguments, *smaller, f'--output_dir={out}']) == 0
    losses = [float(r['test_loss']) for r in commands.rows(out / 'metrics.csv') if r['test_loss']]
    # ln 90 = 4.5 before; characters' frequencies alone give about 3.3.
    assert losses[0] == pytest.approx(4.5, abs=0.05) and losses[-1] < 3.6
