"""Tests of kept reports: they have all that a report needs, and nothing in them is trusted."""

import csv
import json
import math

import numpy as np
import pytest

from tasks import errors
from tasks import report
from tasks.reporting import kept
from tests.support import commands
from tests.support import runs_on_disk
from tests.support import small_data

# The files that the same runs make again, byte for byte.
_FILES = ('report.md', 'cells.csv', 'curves.csv', 'runs.json')


def _make(output, *runs):
  """Writes a report of directories; returns the contents of its files, and the names of figures."""
  assert report.main(['report', *map(str, runs), f'--output={output}']) == 0
  figures = sorted(path.name for path in output.glob('*.png'))
  return {name: (output / name).read_bytes() for name in _FILES}, figures


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """Real runs: two seeds of one system, an unfinished one, and one without privacy."""
  path, data_dir = tmp_path_factory.mktemp('runs'), tmp_path_factory.mktemp('data')
  small_data.write_fashion_mnist(data_dir)
  for name, *flags in (
      ('a', '--seed=1'), ('b', '--seed=2'),
      ('c', '--algorithm=fedavg', '--rounds_per_evaluation=2', '--eval_examples=5'),
  ):
    assert commands.main(commands.tiny(data_dir, path / name, '--rounds=3', *flags)) == 0
  rows = commands.rows(path / 'b' / 'metrics.csv')
  runs_on_disk.write_csv(path / 'b' / 'metrics.csv', rows[:-1])
  return path


class TestExecution:

  def test_a_report_of_a_report_is_equal(self, runs, tmp_path):
    files, figures = _make(tmp_path / 'one', runs)
    assert (files, figures) == _make(tmp_path / 'two', tmp_path / 'one')
    assert figures == ['tests.support.tiny_task_rounds.png']
    assert (files, figures) == _make(tmp_path / 'one', tmp_path / 'one')  # In place.
    # A run that occurs twice counts once, wherever it is.
    assert (files, figures) == _make(tmp_path / 'three', tmp_path / 'one', runs, tmp_path / 'two')

  def test_reports_and_runs_mix(self, runs, tmp_path):
    _make(tmp_path / 'a', runs / 'a')
    _make(tmp_path / 'c', runs / 'c')
    mixed = [tmp_path / 'a', runs / 'b', tmp_path / 'c']
    assert _make(tmp_path / 'one', *mixed) == _make(
        tmp_path / 'two', *(runs / name for name in 'abc')
    )

  def test_kept_numbers_have_all_digits(self, runs, tmp_path):
    _make(tmp_path / 'kept', runs)
    with open(tmp_path / 'kept' / 'curves.csv', encoding='utf-8', newline='') as file:
      curves = [*csv.DictReader(file)]
    for name in 'abc':
      own = [row for row in curves if row['run'] == name]
      measured = [
          row for row in commands.rows(runs / name / 'metrics.csv')
          if row['test_accuracy'] or row.get('test_sample_accuracy')
      ]
      assert len(own) == len(measured) > 1
      for row, full in zip(own, measured):
        for column in ('round', 'epsilon', 'uplink_megabytes'):
          assert float(row[column] or 'nan') == pytest.approx(
              float(full.get(column) or 'nan'), rel=0, abs=0, nan_ok=True
          )
        if full['test_accuracy']:  # Else only the sample was evaluated: an estimate.
          assert row['accuracy'] == full['test_accuracy'] and row['loss'] == full['test_loss']

  def test_nothing_of_the_place_of_a_run_is_kept(self, runs, tmp_path):
    files, _ = _make(tmp_path / 'kept', runs)
    config = json.loads((runs / 'a' / 'config.json').read_text())
    secrets = [str(runs), config['date'], config['run_id'], '--output_dir', 'command', 'versions']
    assert not [text for text in secrets if text.encode() in b''.join(files.values())]

  def test_the_longer_record_of_a_resumed_run_counts(self, tmp_path):
    before = runs_on_disk.write(tmp_path / 'before' / 'run', [0.1, None, 0.5], rounds=4)
    after = runs_on_disk.write(tmp_path / 'after' / 'run', [0.1, None, 0.5, None, 0.6], rounds=4)
    other = runs_on_disk.write(tmp_path / 'other' / 'run', [0.1, None, 0.4], rounds=4)
    _make(tmp_path / 'kept', before)
    for paths in ((after, tmp_path / 'kept'), (tmp_path / 'kept', after)):
      (run,) = kept.read_all(map(str, paths))
      assert run.rounds_done == 4
    runs = kept.read_all(map(str, (before, other)))
    assert [(run.name, run.values['final']) for run in runs] == [('run', 50), ('run (2)', 40)]
    _make(tmp_path / 'both', before, other)
    assert [run.name for run in kept.read_all([str(tmp_path / 'both')])] == ['run', 'run (2)']

  def test_infinite_and_unknown_values_are_kept(self, tmp_path):
    path = runs_on_disk.write(tmp_path / 'a', [0.1, 0.5])
    summary = {'rounds': 1, 'epsilon': 'inf', 'uplink_megabytes': 0.5}
    (path / 'summary.json').write_text(json.dumps(summary))
    rows = commands.rows(path / 'metrics.csv')
    runs_on_disk.write_csv(path / 'metrics.csv', [row | {'epsilon': ''} for row in rows])
    _make(tmp_path / 'kept', path)
    before, after = (kept.read_all([str(p)])[0] for p in (path, tmp_path / 'kept'))
    assert after.values == pytest.approx(before.values, rel=0, abs=0, nan_ok=True)
    assert after.values['epsilon'] == math.inf and math.isnan(after.values['masked'])
    assert np.isnan(after.columns['epsilon']).all()

  def test_runs_and_kept_reports_are_found_in_a_directory(self, tmp_path):
    b, a = (runs_on_disk.write(tmp_path / 'x' / name, accuracies=[0.1]) for name in 'ba')
    _make(tmp_path / 'x' / 'c', a)
    assert kept.find([str(tmp_path), str(b)]) == [a, b, tmp_path / 'x' / 'c']
    (tmp_path / 'x' / 'c' / 'curves.csv').unlink()
    assert kept.find([str(tmp_path)]) == [a, b]
    for path in ('missing', 'x/c'):
      with pytest.raises(errors.InputError, match='has no run. Name the'):
        kept.find([str(tmp_path / path)])

  @pytest.mark.parametrize('change', [
      lambda record: record.update(name=3), lambda record: record.update(config=[]),
      lambda record: record['config'].update(task='../../outside'),
      lambda record: record['config'].update(flags={'clip': {}}),
      lambda record: record['config'].update(privacy={'noise_multiplier': 'x'}),
      lambda record: record.update(rounds_done=0), lambda record: record.update(rounds_done='1'),
      lambda record: record.update(evaluations=3), lambda record: record.update(name='b'),
      lambda record: record.update(seconds='x'), lambda record: record.update(last=[]),
      lambda record: record['last'].update(epsilon='x'),
      lambda record: record['last'].update(epsilon=[]),
      lambda record: record['last'].update(epsilon=10**400), lambda record: record.clear(),
  ])
  def test_a_damaged_record_is_refused(self, tmp_path, capsys, change):
    _make(tmp_path / 'kept', runs_on_disk.write(tmp_path / 'a', [0.1, 0.2]))
    records = json.loads((tmp_path / 'kept' / 'runs.json').read_text())
    change(records[0])
    (tmp_path / 'kept' / 'runs.json').write_text(json.dumps(records))
    _refused(tmp_path, capsys)

  @pytest.mark.parametrize('name, old, new', [
      ('runs.json', '[', '{'), ('runs.json', '[', '[' * 100_000), ('runs.json', '[', '[3,'),
      ('curves.csv', 'a,1,0.2', 'a,1,1.2'), ('curves.csv', 'a,1,0.2', 'a,1,nan'),
      ('curves.csv', 'a,1,0.2', 'a,0,0.2'), ('curves.csv', 'a,1,0.2', 'a,2,0.2'),
      ('curves.csv', 'a,1,0.2', 'a,0.5,0.2'), ('curves.csv', '5e-05', 'inf'),
      ('curves.csv', 'a,0,0.1', 'a,-1,0.1'), ('curves.csv', 'a,1,0.2', 'b,1,0.2'),
      ('curves.csv', 'a,1,0.2', 'a,1,\0'), ('curves.csv', 'a,1,0.2', 'a,1,0.2,3'),
      ('curves.csv', 'accuracy', 'other'), ('curves.csv', 'run,', 'other,'),
  ])
  def test_damaged_files_are_refused(self, tmp_path, capsys, name, old, new):
    _make(tmp_path / 'kept', runs_on_disk.write(tmp_path / 'a', [0.1, 0.2]))
    path = tmp_path / 'kept' / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    _refused(tmp_path, capsys)

  def test_a_cut_table_is_refused(self, tmp_path, capsys):
    _make(tmp_path / 'kept', runs_on_disk.write(tmp_path / 'a', [0.1, 0.2]))
    path = tmp_path / 'kept' / 'curves.csv'
    path.write_bytes(path.read_bytes()[:-1])
    assert 'has 1 evaluations of' in _refused(tmp_path, capsys)


def _refused(tmp_path, capsys):
  capsys.readouterr()
  output = tmp_path / 'out'
  said = commands.refused(capsys, report, str(tmp_path / 'kept'), f'--output={output}')
  assert "can't be read as a kept report" in said and not output.exists()
  assert said.strip().isprintable() and len(said) < 600
  return said
