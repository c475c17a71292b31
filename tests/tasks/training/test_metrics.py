"""Tests of what a run files of its accuracy: measured on samples until the end, then on all."""

import json

import pytest

from fedsmp_tff.privacy import spec as spec_lib
from tests.support import commands

# Of twenty test images.
_SAMPLE, _ALL = 3, 20


def _accuracies(out):
  return [float(row['test_accuracy']) for row in commands.rows(out / 'metrics.csv')]


def _summary(out):
  return json.loads((out / 'summary.json').read_text())


class TestBestAccuracy:

  def test_among_samples_there_is_none(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'a'
    # By luck the sample of this seed starts higher than the whole test set ends.
    arguments = (f'--eval_examples={_SAMPLE}', '--seed=1', '--algorithm=fedavg')
    assert commands.main(commands.tiny(data_dir, out, *arguments)) == 0
    *samples, final = _accuracies(out)
    assert max(samples) > final
    assert all(round(accuracy * _SAMPLE, 6).is_integer() for accuracy in samples)
    assert round(final * _ALL, 6).is_integer()
    assert not [name for name in commands.rows(out / 'metrics.csv')[0] if 'best' in name]
    summary = _summary(out)
    assert not [name for name in summary if 'best' in name]
    assert summary['final_test_accuracy'] == final and summary['measured_round'] == 3
    config = json.loads((out / 'config.json').read_text())
    assert config['flags']['eval_examples'] == _SAMPLE
    printed = capsys.readouterr().out
    assert f'on {_SAMPLE} random test examples every round' in ' '.join(printed.split())
    assert f'accuracy   final {100 * final:.2f} %\n' in printed and 'best' not in printed

  # By default as many examples as there are here, or all.
  @pytest.mark.parametrize('arguments', [(), ('--eval_examples=0',)])
  def test_among_all_examples_the_highest_counts(self, arguments, data_dir, tmp_path, capsys):
    out = tmp_path / 'a'
    arguments = ('--seed=1', '--algorithm=fedavg', *arguments)
    assert commands.main(commands.tiny(data_dir, out, *arguments)) == 0
    accuracies = _accuracies(out)
    best = max(accuracies)
    found = [float(row['best_test_accuracy']) for row in commands.rows(out / 'metrics.csv')]
    assert found == [max(accuracies[: i + 1]) for i in range(len(accuracies))]
    summary = _summary(out)
    best_round = accuracies.index(best)
    assert (summary['best_test_accuracy'], summary['best_round']) == (best, best_round)
    assert f'best {100 * best:.2f} % (round {best_round}), final' in capsys.readouterr().out

  def test_a_run_that_ended_early_names_its_sample(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'a'
    spec = spec_lib.PrivacySpec(12, 3, 3, 1.4, 1.0, 12**-1.1)
    arguments = (
        f'--eval_examples={_SAMPLE}', f'--epsilon_budget={spec.epsilon(rounds=2) + 0.01}'
    )
    assert commands.main(commands.tiny(data_dir, out, *arguments)) == 1
    summary = _summary(out)
    assert summary['final_test_accuracy'] == _accuracies(out)[-1] and summary['rounds'] == 2
    expected = f'{100 * _accuracies(out)[-1]:.2f} %, of {_SAMPLE} random test examples'
    assert expected in capsys.readouterr().out
