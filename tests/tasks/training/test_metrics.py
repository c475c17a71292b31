"""Tests of what a run files of its accuracy: measured on samples until the end, then on all."""

import json

from fedsmp_tff.privacy import spec as spec_lib
from tests.support import commands

# Of twenty test images.
_SAMPLE = 3


def _rows(out):
  found = commands.rows(out / 'metrics.csv')
  return [(float(row['test_accuracy']), float(row['best_test_accuracy'])) for row in found]


class TestBestAccuracy:

  def test_one_on_all_examples_replaces_those_on_samples(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'a'
    # By luck the sample of this seed starts higher than the whole test set ends.
    arguments = (f'--eval_examples={_SAMPLE}', '--seed=1', '--algorithm=fedavg')
    assert commands.main(commands.tiny(data_dir, out, *arguments)) == 0
    *samples, (final, best) = _rows(out)
    highest = max(accuracy for accuracy, _ in samples)
    assert highest > final == best
    assert [found for _, found in samples] == [
        max(accuracy for accuracy, _ in samples[: i + 1]) for i in range(len(samples))
    ]
    assert all(round(accuracy * _SAMPLE, 6).is_integer() for accuracy, _ in samples)
    summary = json.loads((out / 'summary.json').read_text())
    assert (summary['best_test_accuracy'], summary['best_round']) == (final, 3)
    config = json.loads((out / 'config.json').read_text())
    assert config['cadence']['eval_examples'] == _SAMPLE
    assert f'best {100 * final:.2f} % (round 3), final' in capsys.readouterr().out

  def test_among_all_examples_the_highest_counts(self, data_dir, tmp_path):
    out = tmp_path / 'a'
    assert commands.main(commands.tiny(data_dir, out, '--seed=1', '--algorithm=fedavg')) == 0
    accuracies = [accuracy for accuracy, _ in _rows(out)]
    assert _rows(out)[-1][1] == max(accuracies)
    assert json.loads((out / 'config.json').read_text())['cadence']['eval_examples'] is None

  def test_a_run_that_ended_early_names_its_sample(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'a'
    spec = spec_lib.PrivacySpec(12, 3, 3, 1.4, 1.0, 12**-1.1)
    arguments = (
        f'--eval_examples={_SAMPLE}', f'--epsilon_budget={spec.epsilon(rounds=2) + 0.01}'
    )
    assert commands.main(commands.tiny(data_dir, out, *arguments)) == 1
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['best_test_accuracy'] == max(accuracy for accuracy, _ in _rows(out))
    printed = capsys.readouterr().out
    assert f'(round {summary["best_round"]}, of {_SAMPLE} random test examples)' in printed
