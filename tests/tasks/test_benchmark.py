"""Tests of the benchmark's command line; its figures are measured, not asserted."""

import json

import pytest

from tasks import benchmark


class TestComputation:

  @pytest.mark.parametrize(
      'argument, sentence',
      [
          ('--repeats=0', '--repeats must be an integer >= 1; got 0'),
          ('--part=none', '--part'),
      ],
  )
  def test_refusals(self, argument, sentence, capsys):
    assert benchmark.main(['benchmark', argument]) == 2
    said = capsys.readouterr().err
    assert said.startswith('tasks.benchmark: ') and sentence in said

  def test_medians_means_and_ratios_are_printed_and_written(self, monkeypatch, tmp_path, capsys):
    rounds = {'stock': [2.0, 2.0, 5.0], 'rand-k': [1.0, 1.0, 4.0]}
    monkeypatch.setattr(benchmark, '_rounds', lambda part, repeats: rounds)
    file = tmp_path / 'benchmark.json'
    assert benchmark.main(['benchmark', '--part=fashion_mnist', f'--json={file}']) == 0
    printed = capsys.readouterr().out
    assert 'rand-k       median    1.000 s, mean    2.000 s, 2.00 x' in printed
    found = json.loads(file.read_text())['fashion_mnist, rand-k']
    assert found == {'median': 1.0, 'mean': 2.0, 'seconds': rounds['rand-k']}
