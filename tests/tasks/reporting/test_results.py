"""Tests of runs read from their files, and put together over seeds."""

import json
import math

import numpy as np
import pytest

from tasks import errors
from tasks.reporting import results
from tests.support import commands
from tests.support import runs_on_disk


class TestExecution:

  def test_reads_the_rows_with_an_accuracy(self, tmp_path):
    path = runs_on_disk.write(tmp_path / 'a', accuracies=[0.1, None, 0.5, 0.4])
    run = results.read(path)
    assert run.columns['round'].tolist() == [0, 2, 3]
    assert run.best == 50 and run.final == 40 and run.complete
    assert run.last('epsilon') == pytest.approx(0.3) and run.last('epsilon_other') is None
    assert run.seconds == pytest.approx(3 * 1.5)

  def test_cut_at_a_round(self, tmp_path):
    path = runs_on_disk.write(tmp_path / 'a', accuracies=[0.1, 0.6, 0.5, 0.9])
    run = results.read(path, rounds=2)
    assert (run.rounds, run.best, run.final, run.complete) == (2, 60, 50, True)
    assert run.last('epsilon') == pytest.approx(0.2)
    assert results.read(path, rounds=9).rounds == 3

  def test_the_best_of_samples_is_no_result(self, tmp_path):
    path = runs_on_disk.write(tmp_path / 'a', accuracies=[0.1, 0.6, 0.5])
    assert results.read(path).best == 60
    config = json.loads((path / 'config.json').read_text())
    config['sampled'] = True
    (path / 'config.json').write_text(json.dumps(config))
    assert math.isnan(results.read(path).best) and results.read(path).final == 50

  def test_interrupted_between_measurements(self, tmp_path):
    path = runs_on_disk.write(tmp_path / 'a', accuracies=[0.1, None, None], rounds=5)
    rows = commands.rows(path / 'metrics.csv')
    for row in rows[1:]:
      row |= {'epsilon': '', 'epsilon_paper': ''}  # As a run leaves them.
    runs_on_disk.write_csv(path / 'metrics.csv', rows)
    run = results.read(path)
    # What was spent is in no row: never less than it was, so that it is unknown.
    assert (run.rounds_done, run.complete, run.final) == (2, False, 10)
    assert run.last('epsilon') is None
    assert run.last('uplink_megabytes') == pytest.approx(float(rows[-1]['uplink_megabytes']))
    summary = {'rounds': 2, 'epsilon': 48.27, 'epsilon_paper': 50.0}
    (path / 'summary.json').write_text(json.dumps(summary))
    assert results.read(path).last('epsilon') == 48.27
    # At an earlier round the summary is of another.
    assert results.read(path, rounds=1).last('epsilon') is None

  def test_an_abandoned_round_after_the_last_row_counts(self, tmp_path):
    path = runs_on_disk.write(tmp_path / 'a', accuracies=[0.1, 0.6], rounds=5)
    spent = results.read(path).last('epsilon')
    (path / 'summary.json').write_text(json.dumps({'rounds': 1, 'epsilon': spent + 0.5}))
    assert results.read(path).last('epsilon') == spent + 0.5

  def test_unfinished(self, tmp_path):
    path = runs_on_disk.write(tmp_path / 'a', accuracies=[0.1, 0.6], rounds=5)
    assert not results.read(path).complete
    assert results.read(path, rounds=1).complete
    path = runs_on_disk.write(tmp_path / 'b', accuracies=[])
    assert results.read(path) is None

  def test_groups_are_of_all_flags_but_the_seed(self, tmp_path):
    made = [
        runs_on_disk.write(tmp_path / str(i), accuracies=[0.1, accuracy], **options)
        for i, (accuracy, options) in enumerate([
            (0.5, dict(seed=2)), (0.6, dict(seed=1)), (0.7, dict(seed=1, clip=2.0)),
            (0.8, dict(seed=3, rounds=4)),
        ])
    ]
    groups = results.group([results.read(path) for path in made])
    assert [[run.config['seed'] for run in group.runs] for group in groups] == [[1, 2], [1], [3]]
    mean, std = groups[0].mean_and_std('best')
    assert mean == pytest.approx(55) and std == pytest.approx(np.std([50, 60], ddof=1))
    assert groups[1].mean_and_std('final') == (pytest.approx(70), None)
    assert groups[2].complete is None and groups[0].complete.runs == groups[0].runs
    rounds, accuracy, spread = groups[0].curve('test_accuracy')
    assert rounds.tolist() == [0, 1] and accuracy == pytest.approx([0.1, 0.55])
    assert spread == pytest.approx([0, std / 100])

  def test_finds_runs_below_a_directory(self, tmp_path):
    one = runs_on_disk.write(tmp_path / 'x' / 'b', accuracies=[0.1])
    other = runs_on_disk.write(tmp_path / 'x' / 'a', accuracies=[0.1])
    assert results.find([str(tmp_path), str(one)]) == [other, one]
    (tmp_path / 'empty').mkdir()
    for nothing in ('empty', 'missing'):
      with pytest.raises(errors.InputError, match=f'{nothing} has no run'):
        results.find([str(tmp_path / nothing)])

  @pytest.mark.parametrize(
      'file, content',
      [
          ('config.json', '{'), ('config.json', '[]'), ('config.json', '{"rounds": 3}'),
          ('metrics.csv', 'round\n1\n'), ('metrics.csv', 'round,test_accuracy\n1,x\n'),
          ('timings.csv', 'round\n1\n'),
      ],
  )
  def test_what_is_no_run(self, tmp_path, file, content):
    path = runs_on_disk.write(tmp_path / 'a', accuracies=[0.1, 0.2])
    (path / file).write_text(content)
    with pytest.raises(errors.InputError, match="a can't be read as a run"):
      results.read(path)
    (path / 'config.json').unlink()
    with pytest.raises(errors.InputError, match="a can't be read as a run"):
      results.read(path)
