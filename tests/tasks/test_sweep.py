"""Tests of `python -m tasks.sweep`: real processes, interrupted, two at once, and private ones."""

import dataclasses
import re
import shlex
import signal
import subprocess
import sys

import psutil
import pytest

from fedsmp_tff.privacy import ledger as ledger_lib
from tasks import account
from tasks import sweep
from tasks.experiments import grids
from tasks.training import run_directory
from tasks.training import settings as settings_lib
from tests.support import commands
from tests.support import waiting

_NUM_RUNS = 5 * sum(map(len, grids.read('paper/fashion_mnist')))  # With five seeds.


@pytest.fixture
def write_grid(tmp_path, data_dir):

  def make(*lines):
    path = tmp_path / 'my.grid'
    common = [a for a in commands.tiny(data_dir, '', '--algorithm=fedsmp_randk')[1:]
              if 'output_dir' not in a and 'algorithm' not in a]
    path.write_text('\n'.join([f'all: {" ".join(common)}', *lines]))
    return f'--grid={path}'

  return make


def _main(capsys, *arguments):
  return commands.of_module(capsys, sweep, *arguments)


def _start(*arguments):
  return subprocess.Popen(
      [sys.executable, '-m', 'tasks.sweep', *arguments], text=True,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE,
  )


def _finish(*arguments):
  """Runs a sweep to its end, in a process without the threads of the tests; returns status, stdout."""
  process = _start(*arguments)
  out, _ = process.communicate(timeout=waiting.SECONDS)
  return process.returncode, out


def _names(printed):
  """The names of the runs that --print lists."""
  lines = (shlex.split(line) for line in printed.splitlines())
  return [line[-1].removeprefix('--output_dir=').split('/')[-1] for line in lines]


def _texts(root):
  """All logs of a sweep, for a test that fails."""
  return '\n'.join(f'{log}:\n{log.read_text()}' for log in sorted(root.glob('logs/*')))


def _rounds(run_dir):
  path = run_dir / 'metrics.csv'
  return [int(row['round']) for row in commands.rows(path)] if path.exists() else []


class TestComputation:

  @pytest.mark.parametrize('arguments, sentence', [
      ([], '--grid is not set. Set it to a file, or to one of .*masks/fashion_mnist, '),
      (['--grid=none'], "--grid=none can't be read"),
      (
          ['--grid=paper/fashion_mnist', f'--index={_NUM_RUNS}'],
          f'--index={_NUM_RUNS} exceeds the {_NUM_RUNS} runs.*--index={_NUM_RUNS - 1} ',
      ),
      (
          ['--grid=paper/fashion_mnist', '--', '--raunds=1'],
          'the run with --flagfile=.*fashion_mnist.flags .*:'
          " --raunds is not a flag.",
      ),
      (
          ['--grid=paper/fashion_mnist', '--', '--p=0.5'],
          '--algorithm=dp_fedavg --p=0.5 --seed=1: --p has no effect unless'
          ' --algorithm=fedsmp_topk,',
      ),
      *(
          (['--grid=paper/fashion_mnist', '--', flag], f'{name} is not a flag of a grid')
          for flag, name in (
              ('--dry_run', '--dry_run'), ('--overwrite', '--overwrite'),
              ('--output_dir=x', '--output_dir'),
          )
      ),
      *(
          (['--grid=paper/fashion_mnist', *stray], f'{stray[-1]} is not a flag. List flags')
          for stray in (['stray'], ['--', '--p', '0.1'], ['--', '-dry_run'])
      ),
      (['--grid=paper/fashion_mnist', '--', '--flagfile=x'], '--flagfile=x cannot follow --: a gri'),
      (['--grid=paper/fashion_mnist', '--sweep_dir=/dev/null/x'], "x can't be written"),
  ])
  def test_bad_flags_get_one_sentence_and_status_2(self, capsys, arguments, sentence):
    err = commands.refused(capsys, sweep, *arguments)
    assert re.search(sentence, err), err

  def test_print_lists_plain_commands(self, capsys, write_grid, tmp_path):
    grid = write_grid('--algorithm=fedsmp_randk --p={0.1,0.5}')
    where = (f'--sweep_dir={tmp_path / "runs"}', '--seeds=2', '--print')
    status, out, _ = _main(capsys, grid, *where, '--', '--rounds=2')
    lines = out.splitlines()
    assert status == 0 and len(lines) == 4 and not (tmp_path / 'runs').exists()
    assert all(line.startswith('python -m tasks.run --') for line in lines)
    assert all('--task=tests.support.tiny_task' in line for line in lines)
    assert all('--rounds=2' in line and '--rounds=3' not in line for line in lines)
    assert len({line.split('--output_dir=')[1] for line in lines}) == 4
    status, out, _ = _main(capsys, grid, *where, '--index=2', '--', '--rounds=2')
    assert out.splitlines() == [lines[2]]
    status, out, _ = _main(capsys, grid, *where[:2], '--status')
    assert status == 0 and out.count(' to do ') == 4 and not (tmp_path / 'runs').exists()


  def test_a_private_sweep_runs_each_line_once_without_a_seed(self, capsys, write_grid, tmp_path):
    grid = write_grid('--algorithm=fedsmp_randk --p={0.1,0.5}', '--algorithm=dp_fedavg')
    status, out, _ = _main(capsys, grid, '--private', '--print', f'--sweep_dir={tmp_path}')
    lines = out.splitlines()
    assert status == 0 and len(lines) == 3 and 'seed' not in out
    for line in lines:
      _, _, _, *flags = shlex.split(line)  # python -m tasks.run
      settings, _ = settings_lib.parse(flags)
      assert settings.seed is None
    assert len({line.split('--output_dir=')[1] for line in lines}) == 3

  @pytest.mark.parametrize('line, arguments, sentence', [
      ('--seed=3', [], '--private runs without seeds, but the run with .* has --seed=3. Remove'),
      ('', ['--', '--seed=0'], '--private runs without seeds, but the run with .* has --seed=0. '),
      ('--flagfile=seeded.flags', [], '--private runs without seeds, but .* has --seed=4. Remove'),
      ('', ['--seeds=2'], '--private and --seeds=2 exclude each other. Remove one of them'),
  ])
  def test_a_private_sweep_refuses_seeds(
      self, line, arguments, sentence, capsys, write_grid, tmp_path
  ):
    (tmp_path / 'seeded.flags').write_text('--seed=4')
    grid = write_grid('--algorithm=dp_fedavg', f'--algorithm=fedsmp_randk --p=0.5 {line}')
    where = f'--sweep_dir={tmp_path / "runs"}'
    err = commands.refused(capsys, sweep, grid, where, '--private', *arguments)
    assert re.search(sentence, err), err
    assert not (tmp_path / 'runs').exists()

  @pytest.mark.parametrize('num_left, minutes, jobs, text', [
      (0, [3.0], 1, 'no run is left'),
      (1, [3.0, 4.0], 1, '1 run is left, about 4 min'),
      (5, [20.0, 30.0], 1, '5 runs are left, about 2 h 5 min'),
      (5, [20.0, 30.0], 2, '5 runs are left, about 1 h 15 min'),
  ])
  def test_time_left_is_by_the_mean(self, num_left, minutes, jobs, text):
    assert sweep._left_text(num_left, minutes, jobs) == text


def test_a_run_started_by_hand_is_left_alone(write_grid, tmp_path, capsys):
  arguments = (write_grid('--algorithm=fedavg'), f'--sweep_dir={tmp_path}', '--seeds=1')
  (name,) = _names(_main(capsys, *arguments, '--print')[1])
  with run_directory.RunDirectory(tmp_path / name):
    status, out, _ = _main(capsys, *arguments)
    assert status == 0 and out == '0 done, 1 running elsewhere\n'
    assert _main(capsys, *arguments, '--status')[1].split()[1] == 'running'
  assert _main(capsys, *arguments, '--status')[1].split()[1:3] == ['to', 'do']


@pytest.mark.slow
class TestExecution:

  def test_two_sweeps_share_runs_and_report_failures(self, write_grid, tmp_path):
    grid = write_grid(
        '--algorithm=fedsmp_randk --p=0.5',
        f'--algorithm=fedavg --data_dir={tmp_path}',  # No images are there.
        '--algorithm=dp_fedavg',
    )
    root = tmp_path / 'runs'
    both = [_start(grid, f'--sweep_dir={root}', '--seeds=1') for _ in range(2)]
    said = [one.communicate(timeout=waiting.SECONDS) for one in both]
    logs = {log.stem: log.read_text() for log in (root / 'logs').iterdir()}
    # They may quote clients' examples.
    assert {path.stat().st_mode & 0o777 for path in (root / 'logs').iterdir()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (root, root / 'logs')} == {0o700}
    for name, log in logs.items():
      # Begun once and ended once, by one of them; what failed may be tried by both.
      if '-fedavg-' in name:
        assert 'does not exist' in log
      else:
        assert log.count('\noutput: ') == 2 and log.count('3 of 3 rounds done') == 1
        assert _rounds(root / name) == [0, 1, 2, 3]
        assert not (root / name / 'checkpoints').exists()
    assert len(logs) == 3
    done = [int(re.search(r'^(\d+) done', out, re.M)[1]) for out, _ in said]
    assert sum(done) == 2, (said, logs)
    failed = [out for out, _ in said if 'FAILED: exit status 2: tasks.run: ' in out]
    assert failed and sorted(one.returncode for one in both) == [int(len(failed) == 2), 1]

  def test_an_interrupted_sweep_resumes(self, write_grid, tmp_path, capsys):
    grid = write_grid(
        '--algorithm=fedavg --rounds=1', '--algorithm=fedsmp_randk --p=0.5 --rounds=30'
    )
    arguments = (grid, f'--sweep_dir={tmp_path / "runs"}', '--seeds=1')
    status, out, _ = _main(capsys, *arguments, '--print')
    first, second = (
        tmp_path / 'runs' / line.split('--output_dir=')[1].split('/')[-1].strip("'")
        for line in out.splitlines()
    )
    process = None
    for number in (signal.SIGTERM, signal.SIGKILL):
      seen = len(_rounds(second))
      process = _start(*arguments)
      waiting.until(lambda seen=seen: len(_rounds(second)) > seen + 1)
      (run,) = psutil.Process(process.pid).children()
      process.send_signal(number)
      process.communicate(timeout=waiting.SECONDS)
      # The run was told, has ended in its own way, and nothing is left.
      waiting.until(lambda run=run: not run.is_running())
      assert process.returncode == (143 if number == signal.SIGTERM else -9)
      summary = (first / 'summary.json').stat()
    status, out, _ = _main(capsys, *arguments, '--status')
    assert [line.split()[1] for line in out.splitlines()] == ['done', 'begun']
    # A round that was abandoned is run again; none is there twice.
    assert _rounds(second) == [*range(len(_rounds(second)))]
    status, out = _finish(*arguments)
    assert status == 0, out + _texts(tmp_path / 'runs')
    report = f'report: python -m tasks.report {tmp_path / "runs"}'
    assert out.splitlines()[-2:] == ['1 done, 1 done before', report]
    gain = r'accuracy [\d.]+ -> [\d.]+ %: [+-][\d.]+ points over random weights'
    result = rf'{gain}, epsilon = [\d.]+ \(simulated\)'
    assert re.search(rf'^\[2/2\] [\d.]+ min, {result}; no run is left$', out, re.MULTILINE), out
    _, out, _ = _main(capsys, *arguments, '--status')
    assert [bool(re.search(f': {result}$', line)) for line in out.splitlines()] == [False, True]
    assert _rounds(second) == [*range(31)]
    assert (first / 'summary.json').stat() == summary
    log = (tmp_path / 'runs' / 'logs' / f'{second.name}.log').read_text()
    assert log.count('resuming after round') == 2

  def test_private_runs_two_at_a_time_end_together_and_resume(self, write_grid, tmp_path, capsys):
    root = tmp_path / 'runs'
    grid = write_grid(
        '--algorithm=dp_fedavg --rounds={150,151}',  # Both begin at once.
        f'--algorithm=fedavg --data_dir={tmp_path}',  # It fails: no images are there.
        '--algorithm=fedsmp_randk --p=0.5 --rounds=2',
    )
    arguments = (grid, f'--sweep_dir={root}', '--private', '--jobs=2')
    process = _start(*arguments)
    both = [root / name for name in _names(_main(capsys, *arguments, '--print')[1])[:2]]
    waiting.until(lambda: min(len(_rounds(run)) for run in both) > 1)
    runs = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=waiting.SECONDS)
    assert len(runs) == 2 and not any(run.is_running() for run in runs)
    assert process.returncode == 143 and 'ended by SIGTERM; the same command resumes it' in out
    # Every line names its run; the others did not begin.
    assert all(re.match(r'\[[1-4]/4\] ', line) for line in out.splitlines()[:-1]), out
    assert '[3/4]' not in out and '[4/4]' not in out
    seen = [len(_rounds(run)) for run in both]
    status, out = _finish(*arguments)
    assert status == 1 and f'python -m tasks.account {root}' in out, out + _texts(root)
    assert '3 done' in out, out + _texts(root)
    assert all(before < len(_rounds(run)) for before, run in zip(seen, both))
    # The failed one did not end the others.
    assert re.search(r'^\[3/4\] FAILED: exit status 2: tasks.run: ', out, re.MULTILINE)
    assert len(re.findall(r'^\[[124]/4\] [\d.]+ min, accuracy .*\(valid\); ', out, re.M)) == 3
    # What was interrupted counts what it lost; all ledgers are in one epsilon.
    records = [ledger_lib.read(path) for path in sorted(root.glob('*/privacy_ledger.jsonl'))]
    assert len(records) == 3 and not any(record.seeded for record in records)
    assert [len({*record.rounds}) for record in records] == [150, 151, 2]
    (spec,) = {dataclasses.replace(record.spec, rounds=1) for record in records}
    epsilon = spec.epsilon(rounds=sum(record.rounds_charged for record in records))
    status, out, _ = commands.of_module(capsys, account, str(root))
    assert status == 0 and f'\nQuote epsilon = {epsilon:.4g}, by ' in out
