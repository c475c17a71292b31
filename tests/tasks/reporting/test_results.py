"""Tests of reading runs from their files and grouping them over seeds."""

import json
import math

import numpy as np
import pytest

from tasks.reporting import results
from tests.support import commands
from tests.support import runs_on_disk


class TestExecution:

  def test_only_rows_with_an_accuracy_are_read(self, tmp_path):
    path = runs_on_disk.write(tmp_path / 'a', accuracies=[0.1, None, 0.6, 0.4])
    run = results.read(path)
    assert run.columns['round'].tolist() == [0, 2, 3]
    assert (run.values['best'], run.values['final'], run.rounds_done) == (60, 40, 3)
    assert run.values['epsilon'] == pytest.approx(0.3) and math.isnan(run.values['masked'])
    assert run.seconds == pytest.approx(3 * 1.5)
    # The best of samples is no result.
    config = json.loads((path / 'config.json').read_text())
    (path / 'config.json').write_text(json.dumps(config | {'sampled': True}))
    assert math.isnan(results.read(path).values['best'])
    assert results.read(runs_on_disk.write(tmp_path / 'b', accuracies=[])) is None

  def test_a_curve_on_a_sample_begins_and_ends_with_all_examples(self, tmp_path):
    path = runs_on_disk.write(tmp_path / 'a', accuracies=[0.5, None, None, 0.7])
    rows = commands.rows(path / 'metrics.csv')
    for row, sample in zip(rows, (0.4, 0.45, '', 0.65)):
      loss = '' if sample == '' else 2 - sample
      row |= {'test_sample_accuracy': sample, 'test_sample_loss': loss}
    runs_on_disk.write_csv(path / 'metrics.csv', rows)
    run = results.read(path)
    assert run.columns['round'].tolist() == [0, 1, 3]
    assert run.columns['test_accuracy'] == pytest.approx([0.5, 0.55, 0.7])
    assert run.columns['test_loss'] == pytest.approx([0.5, 0.45, 0.3])
    assert run.values['final'] == pytest.approx(70) and math.isnan(run.values['gain'])
    for rounds, gain in ((3, 20), (2, math.nan)):  # The gain of the summary of these rounds.
      (path / 'summary.json').write_text(json.dumps({'rounds': rounds, 'gain': 0.2}))
      assert results.read(path).values['gain'] == pytest.approx(gain, nan_ok=True)

  def test_epsilon_after_an_interrupt_is_from_the_summary(self, tmp_path):
    path = runs_on_disk.write(tmp_path / 'a', accuracies=[0.1, None, None], rounds=5)
    rows = commands.rows(path / 'metrics.csv')
    for row in rows[1:]:
      row |= {'epsilon': '', 'epsilon_paper': ''}  # As a run leaves them.
    runs_on_disk.write_csv(path / 'metrics.csv', rows)
    run = results.read(path)
    # The privacy loss since the evaluation is in no row, so that epsilon is unknown.
    assert (run.rounds_done, run.values['final']) == (2, 10)
    assert math.isnan(run.values['epsilon'])
    assert run.values['uplink_megabytes'] == float(rows[-1]['uplink_megabytes'])
    summary = {'rounds': 2, 'epsilon': 48.27, 'epsilon_paper': 50.0}
    (path / 'summary.json').write_text(json.dumps(summary))
    assert results.read(path).values['epsilon'] == 48.27
    (path / 'summary.json').write_text(json.dumps(summary | {'rounds': 1}))
    assert math.isnan(results.read(path).values['epsilon'])  # The summary is of another round.

  def test_runs_are_grouped_by_flags_and_length(self, tmp_path):
    paths = [
        runs_on_disk.write(tmp_path / str(accuracy), [0.1, accuracy], **options)
        for accuracy, options in (
            (0.5, dict(seed=2)), (0.6, dict(seed=1)), (0.7, dict(clip=2.0)), (0.8, dict(rounds=4)),
        )
    ]
    paths.append(runs_on_disk.write(tmp_path / 'longer', [0.1, 0.7, 0.8], rounds=4))
    groups = results.group([*map(results.read, paths)])
    assert [[run.config['seed'] for run in group.runs] for group in groups] == [[1, 2], *[[1]] * 3]
    mean, std = groups[0].mean_and_std('best')
    assert mean == pytest.approx(55) and std == pytest.approx(np.std([50, 60], ddof=1))
    assert groups[1].mean_and_std('final') == (pytest.approx(70), None)
    assert [group.complete for group in groups] == [True, True, False, False]
    rounds, accuracy, spread = groups[0].curve('test_accuracy')
    assert rounds.tolist() == [0, 1] and accuracy == pytest.approx([10, 55])
    assert spread == pytest.approx([0, std])

  def test_a_choice_by_tune_is_said_and_has_a_group_of_its_own(self, tmp_path):
    paths = [runs_on_disk.write(tmp_path / name, [0.1, 0.6]) for name in ('plain', 'chosen')]
    config = json.loads((paths[1] / 'config.json').read_text())
    content = json.dumps(config | {'choice': {'privacy_ledger.1.jsonl': 1}})
    (paths[1] / 'config.json').write_text(content)
    plain, chosen = results.group([*map(results.read, paths)])
    assert chosen.method == f'{plain.method}, chosen by tasks.tune'

  def test_p_is_the_flag_if_k_matches(self, tmp_path):
    path = runs_on_disk.write(tmp_path / 'a', accuracies=[0.1, 0.6], p=0.05)
    config = json.loads((path / 'config.json').read_text())
    for flag, dim, num_kept, p in (
        (0.05, 7850, 392, 0.05), (None, 7850, 392, 392 / 7850), ('0.05', 7850, 392, 392 / 7850),
        (0.05, 7850, 393, 393 / 7850), (1e-9, 7850, 1, 1e-9),
    ):
      flags = config['flags'] | {'p': flag}
      content = json.dumps(config | {'flags': flags, 'dim': dim, 'num_kept': num_kept})
      (path / 'config.json').write_text(content)
      assert results.group([results.read(path)])[0].p == p

  def test_first_to_reach_is_the_first_evaluated_round(self, tmp_path):
    run = results.read(runs_on_disk.write(tmp_path / 'a', [0.1, None, 0.72, 0.71, 0.9], p=0.1))
    assert run.first_to_reach(72) == (2, pytest.approx(0.01 * 0.1 * 2))
    assert run.first_to_reach(72.01)[0] == 4 and run.first_to_reach(90.1) is None
