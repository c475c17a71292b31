"""Tests of a run's lines of progress, and of accuracy in its files: on samples and at both ends."""

import json
import re
import signal

import pytest
import tensorflow_federated as tff

from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import loop
from tasks import errors
from tasks.reporting import results
from tasks.training import reporters
from tasks.training import settings as settings_lib
from tests.support import commands

# Test images of a sample, and of the test set.
_SAMPLE, _ALL = 3, 20


class _Experiment:
  """What lines of progress know of a run without privacy."""

  settings, private = settings_lib.parse(['--task=fashion_mnist', '--rounds=9'])[0], False


class _InterruptedInRound2(tff.program.ReleaseManager):

  async def release(self, value, key):
    if key == 2:
      raise errors.Interrupted(signal.SIGTERM)


def interrupted_manager():
  return _InterruptedInRound2()


def _log_until_round_2(line):
  if line.startswith('round 2/'):
    raise errors.Interrupted(signal.SIGTERM)


@pytest.mark.parametrize('place', ['release manager', 'line of progress'])
def test_summary_matches_the_weights_after_an_interrupt(
    place, data_dir, tmp_path, capsys, monkeypatch
):
  run = commands.tiny(data_dir, tmp_path / 'run', '--seed=1', '--rounds_per_evaluation=9')
  with monkeypatch.context() as patch:
    flags = [f'--release_manager={__name__}:interrupted_manager']
    if place == 'line of progress':
      flags = []
      patch.setattr(reporters, '_SECONDS_PER_LINE', 0)
      patch.setattr(reporters, '_log', _log_until_round_2)
    assert commands.main([*run, *flags]) == 143
  assert commands.main(commands.tiny(data_dir, tmp_path / 'one', '--seed=1', '--rounds=1')) == 0
  summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
  assert summary['rounds'] == 1 and summary['rounds_charged'] == 2
  read = results.read(tmp_path / 'run')
  assert (tmp_path / 'run' / 'timings.csv').read_text().count('\n') == 3
  assert read.rounds_done == 1 and read.values['epsilon'] == summary['epsilon']
  weights = [(tmp_path / name / 'weights.npz').read_bytes() for name in ('run', 'one')]
  assert weights[0] == weights[1]
  # Until the resumed run evaluates, its lines have no accuracy.
  monkeypatch.setattr(reporters, '_SECONDS_PER_LINE', 0)
  assert commands.main(run) == 0
  assert '\nround 2/3: epsilon ' in capsys.readouterr().err


def test_a_lost_round_counts_in_table_lines_and_summary(
    data_dir, tmp_path, capsys, monkeypatch
):
  run = commands.tiny(data_dir, tmp_path / 'run')
  monkeypatch.setattr(reporters, '_SECONDS_PER_LINE', 0)
  with monkeypatch.context() as patch:
    patch.setattr(reporters, '_log', _log_until_round_2)
    assert commands.main(run) == 143
  assert commands.main(run) == 0
  rows = commands.rows(tmp_path / 'run' / 'metrics.csv')
  assert [int(row['rounds_charged']) for row in rows] == [0, 1, 3, 4]
  spec = ledger_lib.read(tmp_path / 'run' / 'privacy_ledger.jsonl').spec
  summary, last = json.loads((tmp_path / 'run' / 'summary.json').read_text()), rows[-1]
  assert float(rows[0]['epsilon']) == 0 and summary['rounds_charged'] == 4
  assert float(last['epsilon']) == summary['epsilon'] == spec.epsilon(rounds=4)
  paper = spec.epsilon(accountants.PAPER, 4)
  assert float(last['epsilon_paper']) == summary['epsilon_paper'] == paper
  assert f'%, epsilon {summary["epsilon"]:.3g}, ' in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize('name, is_interrupted', [
    ('metrics.csv', True), ('metrics.csv', False), ('timings.csv', True), ('timings.csv', False),
])
def test_a_table_saved_by_another_program_is_refused(
    name, is_interrupted, data_dir, tmp_path, capsys, monkeypatch
):
  table = tmp_path / 'run' / name

  def save_in_round_2(line):
    if line.startswith('round 2/'):
      table.write_bytes(table.read_bytes().replace(b'\r\n', b'\n'))
      if is_interrupted:
        raise errors.Interrupted(signal.SIGTERM)

  monkeypatch.setattr(reporters, '_SECONDS_PER_LINE', 0)
  monkeypatch.setattr(reporters, '_log', save_in_round_2)
  # Only the timings of a finished run are in no result.
  lost = is_interrupted or name == 'metrics.csv'
  run = commands.tiny(data_dir, tmp_path / 'run', '--seed=1')
  assert commands.main(run) == (2 if lost else 0)
  assert (f'{name} was cut or changed' in capsys.readouterr().err) == lost
  assert (tmp_path / 'run' / 'summary.json').exists() != lost


def test_sampled_and_full_accuracy_are_kept_apart(data_dir, tmp_path, capsys):
  # It is luck that the sample of this seed starts higher than the whole test set ends.
  flags = (f'--eval_examples={_SAMPLE}', '--seed=1', '--algorithm=fedavg', '--verbose')
  assert commands.main(commands.tiny(data_dir, tmp_path / 'a', *flags)) == 0
  rows = commands.rows(tmp_path / 'a' / 'metrics.csv')
  initial, *none, final = (row['test_accuracy'] for row in rows)
  samples = [float(row['test_sample_accuracy']) for row in rows]
  initial, final = float(initial), float(final)
  summary = json.loads((tmp_path / 'a' / 'summary.json').read_text())
  printed, err = capsys.readouterr()
  assert none == ['', ''] and max(samples) > final
  assert all(round(accuracy * _SAMPLE, 6).is_integer() for accuracy in samples)
  assert all(round(accuracy * _ALL, 6).is_integer() for accuracy in (initial, final))
  assert not [name for name in (*rows[0], *summary) if 'best' in name]
  assert summary['final_test_accuracy'] == final and summary['measured_round'] == 3
  assert summary['initial_test_accuracy'] == initial and summary['gain'] == final - initial != 0
  assert summary['final_test_loss'] == float(rows[-1]['test_loss'])
  # The first line and the last have the sample too, as all lines have.
  for number, accuracy in ((0, initial), (3, final)):
    both = (
        f'accuracy {100 * samples[number]:.2f} % on a sample'
        f' ({100 * accuracy:.2f} % on all test examples)'
    )
    assert re.search(rf'^round {number}/3: loss [\d.]+, {re.escape(both)}', err, re.MULTILINE), err
  config = json.loads((tmp_path / 'a' / 'config.json').read_text())
  assert config['flags']['eval_examples'] == _SAMPLE
  plan = f'evaluation {_SAMPLE} random test examples every round; all before the first and after'
  assert plan in ' '.join(printed.split())
  gain = f'{100 * initial:.2f} -> {100 * final:.2f} %: {100 * (final - initial):+.2f} points'
  assert f'accuracy   {gain} over random weights\n' in printed and 'best' not in printed
  tags = {tag for step, tag, _ in commands.events(tmp_path / 'a') if step == 1}
  assert {'test/sample_accuracy', 'uplink/megabytes', 'round/participants'} <= tags
  assert 'test/accuracy' not in tags and 'round/round' not in tags
  # A run that is finished says the same.
  assert commands.main(commands.tiny(data_dir, tmp_path / 'a', *flags)) == 0
  assert f'accuracy {gain} over random weights\n' in capsys.readouterr().out


def test_initial_weights_have_no_gain(
    data_dir, tmp_path, capsys, monkeypatch
):
  flags = (f'--eval_examples={_SAMPLE}', '--seed=1', '--algorithm=fedavg', '--rounds=4')
  monkeypatch.setattr(reporters, '_SECONDS_PER_LINE', 0)
  monkeypatch.setattr(reporters, '_log', _log_until_round_2)
  run = commands.tiny(data_dir, tmp_path / 'a', *flags, '--rounds_per_evaluation=9')
  assert commands.main(run) == 143
  summary = json.loads((tmp_path / 'a' / 'summary.json').read_text())
  initial = commands.rows(tmp_path / 'a' / 'metrics.csv')[0]
  accuracy = 100 * float(initial['test_accuracy'])
  assert summary['final_test_accuracy'] == accuracy / 100 and 'gain' not in summary
  printed = f'accuracy   {accuracy:.2f} %, last evaluated after round 0\n'
  assert printed in capsys.readouterr().out


def test_gain_of_an_interrupted_run_is_on_the_sample(data_dir, tmp_path, capsys, monkeypatch):
  flags = (f'--eval_examples={_SAMPLE}', '--seed=1', '--algorithm=fedavg', '--rounds=4')
  monkeypatch.setattr(reporters, '_SECONDS_PER_LINE', 0)
  with monkeypatch.context() as patch:
    patch.setattr(reporters, '_log', _log_until_round_2)
    assert commands.main(commands.tiny(data_dir, tmp_path / 'a', *flags)) == 143
  summary = json.loads((tmp_path / 'a' / 'summary.json').read_text())
  first, last = (
      float(row['test_sample_accuracy']) for row in commands.rows(tmp_path / 'a' / 'metrics.csv')
  )
  assert summary['measured_round'] == summary['rounds'] == 1
  assert (summary['initial_test_accuracy'], summary['final_test_accuracy']) == (first, last)
  assert f'over random weights, on {_SAMPLE} random test examples\n' in capsys.readouterr().out


@pytest.mark.parametrize('seconds', [0, 100_000])
def test_progress_lines_have_accuracy_and_time_left(seconds, data_dir, tmp_path, monkeypatch, capfd):
  monkeypatch.setattr(reporters, '_SECONDS_PER_LINE', seconds)
  flags = ('--seed=1', '--algorithm=fedavg', '--rounds=6', '--rounds_per_evaluation=2')
  assert commands.main(commands.tiny(data_dir, tmp_path / 'run', *flags)) == 0
  printed, err = capfd.readouterr()
  assert re.search(r'^  time +\d+:\d\d:\d\d \(h:mm:ss\) for rounds', printed, re.MULTILINE)
  first, compiling, *lines = err.splitlines()
  assert re.fullmatch(r'round 0/6: loss [\d.]+, accuracy [\d.]+ %', first)
  assert compiling == 'compiling the first round'
  accuracy, time_left = r'loss [\d.]+, accuracy [\d.]+ %', r'[\d.e-]+ s per round, \d\d:\d\d left'
  # The last in any case, however little time has passed; accuracy where it was measured, and no
  # time left before there is a round that did not compile.
  expected = {
      1: '', 2: f': {accuracy}, {time_left}', 3: f': {time_left}', 4: f': {accuracy}, {time_left}',
      5: f': {time_left}', 6: f': {accuracy}, {time_left}',
  }
  shown = [*expected] if seconds == 0 else [6]
  assert len(lines) == len(shown)
  for text, number in zip(lines, shown):
    assert re.fullmatch(f'round {number}/6{expected[number]}', text), text
  assert lines[-1].endswith(' 00:00 left')


def test_time_left_excludes_the_compiled_round(monkeypatch, capfd):
  now = iter((10.0, 500.0, 503.0, 506.0))  # After rounds 0 to 3: the first compiles for 490 s.
  monkeypatch.setattr(reporters, '_SECONDS_PER_LINE', 0)
  lines = reporters.Lines(_Experiment())
  monkeypatch.setattr(reporters.time, 'monotonic', lambda: next(now))
  for rounds_done in range(4):
    lines(loop.RoundReport(rounds_done, rounds_done, None))
  assert capfd.readouterr().err.splitlines() == [
      'round 0/9', 'compiling the first round', 'round 1/9',
      'round 2/9: 3 s per round, 00:21 left', 'round 3/9: 3 s per round, 00:18 left',
  ]
