"""Tests of the benchmark's command line; its figures are measured, not asserted."""

import json

import pytest

from tasks import benchmark
from tests.support import commands


def test_bad_flags_get_one_sentence_and_status_2(capsys):
  for argument, sentence in (
      ('--repeats=0', '--repeats must be an integer >= 1; got 0'), ('--part=none', '--part'),
      ('--json=/none/x', "--json=/none/x can't be written"),
      ('--json=.', r"--json=. can't be written"),
      ('--json=/dev/null', '--json=/dev/null is not a regular file'),
  ):
    assert sentence in commands.refused(capsys, benchmark, argument)


def test_medians_means_and_ratios_are_printed_and_written(monkeypatch, tmp_path, capsys):
  rounds = {'stock': [2.0, 2.0, 5.0], 'rand-k': [1.0, 1.0, 4.0]}
  monkeypatch.setattr(benchmark, '_rounds', lambda part, repeats: (
      (name, times[i]) for i in range(3) for name, times in rounds.items()
  ))
  file = tmp_path / 'benchmark.json'
  assert benchmark.main(['benchmark', '--part=fashion_mnist', f'--json={file}']) == 0
  printed = ' '.join(capsys.readouterr().out.split())
  assert 'stock median 2.000 s, mean 3.000 s, 1.50 x' in printed
  measured = json.loads(file.read_text())['fashion_mnist, rand-k']
  assert measured == {'median': 1.0, 'mean': 2.0, 'seconds': rounds['rand-k']}


def test_an_interrupt_keeps_earlier_measurements(monkeypatch, tmp_path):
  def rounds(part, repeats):
    del part, repeats
    yield 'rand-k', 2.0
    yield 'stock', 3.0
    yield 'rand-k', 4.0
    raise KeyboardInterrupt

  monkeypatch.setattr(benchmark, '_rounds', rounds)
  file = tmp_path / 'benchmark.json'
  with pytest.raises(KeyboardInterrupt):
    benchmark.main(['benchmark', '--part=fashion_mnist', f'--json={file}'])
  measured = json.loads(file.read_text())
  assert measured['fashion_mnist, rand-k'] == {'median': 3.0, 'mean': 3.0, 'seconds': [2.0, 4.0]}
  assert measured['fashion_mnist, stock']['seconds'] == [3.0]
  assert [*tmp_path.iterdir()] == [file]
