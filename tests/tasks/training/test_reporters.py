"""Tests of a run's lines of progress, and of accuracy in its files: on samples until the end."""

import json
import re
import signal

import pytest
import tensorflow_federated as tff

from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import ledger as ledger_lib
from tasks.cli import interruption
from tasks.reporting import results
from tasks.training import reporters
from tests.support import commands

# Test images of a sample, and of the test set.
_SAMPLE, _ALL = 3, 20


class _InterruptedInRound2(tff.program.ReleaseManager):

  async def release(self, value, key):
    if key == 2:
      raise interruption.Interrupted(signal.SIGTERM)


def interrupted_manager():
  return _InterruptedInRound2()


def _log_until_round_2(line):
  if line.startswith('round 2/'):
    raise interruption.Interrupted(signal.SIGTERM)


@pytest.mark.parametrize('place', ['release manager', 'line of progress'])
def test_the_summary_is_of_the_weights_if_a_report_is_interrupted(
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


def test_a_lost_round_counts_in_the_table_the_lines_and_the_summary_alike(
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
def test_a_table_that_another_program_saved(
    name, is_interrupted, data_dir, tmp_path, capsys, monkeypatch
):
  table = tmp_path / 'run' / name

  def save_in_round_2(line):
    if line.startswith('round 2/'):
      table.write_bytes(table.read_bytes().replace(b'\r\n', b'\n'))
      if is_interrupted:
        raise interruption.Interrupted(signal.SIGTERM)

  monkeypatch.setattr(reporters, '_SECONDS_PER_LINE', 0)
  monkeypatch.setattr(reporters, '_log', save_in_round_2)
  # Only the timings of a finished run are in no result.
  lost = is_interrupted or name == 'metrics.csv'
  run = commands.tiny(data_dir, tmp_path / 'run', '--seed=1')
  assert commands.main(run) == (2 if lost else 0)
  assert (f'{name} was cut or changed' in capsys.readouterr().err) == lost
  assert (tmp_path / 'run' / 'summary.json').exists() != lost


def test_accuracy_on_samples(data_dir, tmp_path, capsys):
  # It is luck that the sample of this seed starts higher than the whole test set ends.
  flags = (f'--eval_examples={_SAMPLE}', '--seed=1', '--algorithm=fedavg')
  assert commands.main(commands.tiny(data_dir, tmp_path / 'a', *flags)) == 0
  rows = commands.rows(tmp_path / 'a' / 'metrics.csv')
  *samples, final = (float(row['test_accuracy']) for row in rows)
  summary = json.loads((tmp_path / 'a' / 'summary.json').read_text())
  printed = capsys.readouterr().out
  assert max(samples) > final
  assert all(round(accuracy * _SAMPLE, 6).is_integer() for accuracy in samples)
  assert round(final * _ALL, 6).is_integer()
  assert not [name for name in (*rows[0], *summary) if 'best' in name]
  assert summary['final_test_accuracy'] == final and summary['measured_round'] == 3
  config = json.loads((tmp_path / 'a' / 'config.json').read_text())
  assert config['flags']['eval_examples'] == _SAMPLE
  assert f'evaluation {_SAMPLE} random test examples every round' in ' '.join(printed.split())
  assert f'accuracy   final {100 * final:.2f} %\n' in printed and 'best' not in printed


@pytest.mark.parametrize('seconds', [0, 100_000])
def test_lines_of_progress(seconds, data_dir, tmp_path, monkeypatch, capfd):
  monkeypatch.setattr(reporters, '_SECONDS_PER_LINE', seconds)
  flags = ('--seed=1', '--algorithm=fedavg', '--rounds=6', '--rounds_per_evaluation=2')
  assert commands.main(commands.tiny(data_dir, tmp_path / 'run', *flags)) == 0
  printed, err = capfd.readouterr()
  assert re.search(r'^  time +\d+:\d\d:\d\d \(h:mm:ss\) for rounds', printed, re.MULTILINE)
  first, compiling, *lines = err.splitlines()
  assert re.fullmatch(r'round 0/6: loss [\d.]+, accuracy [\d.]+ %', first)
  assert compiling == 'compiling the first round'
  line = re.compile(
      r'round (\d)/6: loss [\d.]+, accuracy [\d.]+ %, [\d.e-]+ s per round, \d\d:\d\d left'
  )
  # The last in any case, however little time has passed.
  expected = ['1', '2', '3', '4', '5', '6'] if seconds == 0 else ['6']
  assert [line.fullmatch(text)[1] for text in lines] == expected
  assert lines[-1].endswith(' 00:00 left')
