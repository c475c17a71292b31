"""Tests of `python -m tasks.report`: the paper's cells next to measured ones, and figures."""

import csv
import json

import matplotlib.image
import numpy as np
import pytest

from tasks import report
from tests.support import commands
from tests.support import runs_on_disk

_TABLE_1 = 'Table 1: Fashion-MNIST'
_OTHERS = 'Runs without a counterpart in the paper, and incomplete runs'


@pytest.fixture
def runs(tmp_path):
  """Writes runs by name."""

  def write(name, accuracies, **options):
    return runs_on_disk.write(tmp_path / 'runs' / name, accuracies=accuracies, **options)

  return write


def _report(tmp_path, *arguments):
  """Runs the command; returns the rows of cells.csv by the title of their table, and report.md."""
  output = tmp_path / 'out'
  assert report.main(['report', str(tmp_path / 'runs'), f'--output={output}', *arguments]) == 0
  cells = {}
  with open(output / 'cells.csv', encoding='utf-8', newline='') as file:
    for line in csv.reader(file):
      if line[0] == 'table':
        header = line[1:]
      else:
        cells.setdefault(line[0], []).append(dict(zip(header, line[1:])))
  return cells, (output / 'report.md').read_text()


class TestExecution:

  def test_measured_cells_next_to_the_papers(self, tmp_path, runs, capsys):
    # 180 rounds, of which only the last but one and the last are measured.
    for seed, best in ((1, 0.81), (2, 0.83)):
      runs(str(seed), [0.1, *[None] * 178, best, 0.8], seed=seed)
    cells, text = _report(tmp_path)
    assert str(tmp_path / 'out' / 'report.md') in capsys.readouterr().out
    (row,) = (row for row in cells[_TABLE_1] if row['seeds'])
    assert row == {
        'algorithm': 'fedsmp_topk', 'p': '0.005', 'sigma': '1.4',
        'paper (best, %)': '80.76 ± 0.27', 'measured: best (%)': '82.00 ± 1.41',
        'difference': '+1.24', 'measured: final (%)': '80.00 ± 0.00', 'seeds': '2',
        "epsilon, paper's table": '1.01', "epsilon, paper's accounting": '36',
        'epsilon, valid': '18', 'uplink, paper (MB)': '0.1', 'uplink (MB)': '0.009',
        'differs from the paper in': '',
    }
    # The same runs are a cell of Table 5; the other cells are shown as not run.
    assert any(r['measured: best (%)'] == '82.00 ± 1.41' for r in cells[
        'Table 5: Fashion-MNIST, top-k, over epsilon'
    ])
    others = [r for r in cells[_TABLE_1] if r is not row]
    assert len(others) == 15 and all(r['measured: best (%)'] == 'not run' for r in others)
    assert '1 of 16 cells were run.' in text and 'Table 2: SVHN (16 cells); Table 3' in text
    assert '82.00 ± 1.41' in text and 'Table 9' in text and '| not run |' not in text

  def test_differences_from_the_paper(self, tmp_path, runs):
    runs('a', [0.1, 0.8], rounds='all', clip=0.5, sampling='poisson', mask_rounds=5)
    runs('b', [0.1, 0.7], rounds='all', noise_multiplier=1.45)
    cells, _ = _report(tmp_path)
    assert [row['differs from the paper in'] for row in cells[_TABLE_1] if row['seeds']] == [
        'mask_rounds = 5, clip = 0.5, sampling = poisson', 'sigma = 1.45',
    ]

  def test_accuracy_on_clients_own_examples_is_marked(self, tmp_path, runs):
    for name, accuracy, flags in (
        ('own', 0.8, dict(clip=1.3)), ('others', 0.7, dict(clip=1.2)),
        ('not_private', 0.9, dict(algorithm='fedavg_topk', clients_per_round=50)),
    ):
      path = runs(name, [0.1, accuracy], rounds='all', **flags) / 'config.json'
      config = json.loads(path.read_text())
      path.write_text(json.dumps(config | {'test_outside_guarantee': name != 'others'}))
    cells, text = _report(tmp_path)
    measured = [row for row in cells[_TABLE_1] if row['seeds']]
    for column in ('measured: final (%)', 'measured: best (%)'):
      assert {row[column] for row in measured} == {'80.00 †', '70.00'}
    assert cells[_OTHERS][0]['final (%)'] == '90.00'  # It has no guarantee.
    sentence = 'exact functions of clients\' own examples, OUTSIDE (epsilon, delta)'
    # Tables 1 and 5 have the run.
    assert text.count(sentence) == 2 and '80.00 †' in text

  def test_incomplete_and_other_runs(self, tmp_path, runs):
    runs('a', [0.1, 0.8], rounds=7)
    runs('b', [0.1, 0.4], algorithm='fedavg_topk', clients_per_round=50)
    runs('c', [])
    runs('d', [0.3], algorithm='public_only')
    cells, text = _report(tmp_path)
    rows = cells[_OTHERS]
    assert [row['rounds'] for row in rows] == ['1 of 7', '1', '0']
    assert ['clients_per_round = 50' in row['with'] for row in rows] == [False, True, False]
    assert [row['final (%)'] for row in rows] == ['80.00', '40.00', '30.00']
    assert [rows[2][name] for name in ('uplink (MB)', 'epsilon, valid')] == ['0', '']
    assert _TABLE_1 not in cells
    assert [(row['run'], row['rounds'], row['accuracy (%)']) for row in cells['The runs']] == [
        ('a', '1 of 7', '80.00'), ('b', '1 of 1', '40.00'), ('d', '0 of 0', '30.00')
    ]
    would = 'Every private run used a seed: epsilon is what fresh noise would give.'
    assert text.count(would) == 1
    # Cut at round 1, all are complete; shorter than the paper's, none is a row of its tables.
    cells, _ = _report(tmp_path, '--rounds=1')
    assert [row['rounds'] for row in cells[_OTHERS]] == ['1', '1', '0']
    assert _TABLE_1 not in cells

  def test_padding_has_columns_where_there_is_some(self, tmp_path, runs):
    for name, accuracies in (('a', [0.1, 0.6]), ('b', [0.1, 0.4])):
      run = runs(name, accuracies, seed=ord(name))
      rows = commands.rows(run / 'metrics.csv')
      for row, accuracy in zip(rows, accuracies):
        row |= {'test_accuracy_masked': accuracy / 2, 'test_accuracy_counted': accuracy}
      runs_on_disk.write_csv(run / 'metrics.csv', rows)
    (row,) = _report(tmp_path)[0][_OTHERS]
    assert row['final, padding masked (%)'] == '25.00 ± 7.07'
    assert row['final, padding counted (%)'] == '50.00 ± 14.14'

  def test_shared_flags_are_in_the_note(self, tmp_path, runs):
    shared = {'validation_examples': 16, 'clip_schedule': 'learning_rate'}
    runs('a', [0.1, 0.4], **shared)
    runs('b', [0.1, 0.8], batch_size=20, **shared)
    cells, text = _report(tmp_path)
    assert [row['with'] for row in cells[_OTHERS]] == ['batch_size = 20', '']
    assert text.count('clip_schedule = learning_rate') == text.count('validation_examples = 16') == 1

  @pytest.mark.slow
  def test_figures(self, tmp_path, runs):
    for algorithm in ('fedsmp_topk', 'fedavg_topk'):
      for p in (0.005, 0.1, 0.4):
        runs(f'{algorithm}{p}', [0.1, p], algorithm=algorithm, p=p)
    _report(tmp_path)
    paths = sorted((tmp_path / 'out').glob('*.png'))
    assert [path.stem for path in paths] == ['fashion_mnist_ratio', 'fashion_mnist_rounds']
    assert all(np.std(matplotlib.image.imread(path)) > 0.01 for path in paths)

  def test_reads_what_tasks_run_writes(self, tmp_path, data_dir):
    run_dir = tmp_path / 'runs' / 'a'
    assert commands.main(commands.tiny(data_dir, run_dir, '--algorithm=dp_fedavg')) == 0
    cells, text = _report(tmp_path)
    (row,) = cells[_OTHERS]
    last = commands.rows(run_dir / 'metrics.csv')[-1]
    assert row['final (%)'] == f'{100 * float(last["test_accuracy"]):.2f}'
    assert row['epsilon, valid'] == f'{float(last["epsilon"]):.3g}'
    assert row["epsilon, paper's accounting"] == f'{float(last["epsilon_paper"]):.3g}'
    assert 'batch_size = 5' in row['with'] and 'used a seed' not in text
    assert not any('padding' in column for column in row)

  def test_one_sentence_and_status_2(self, tmp_path, runs, capsys):
    run_dir = runs('a', [0.1, 0.2])
    for arguments, sentence in (
        ([], 'no run directory is named'),
        ([str(tmp_path / 'nowhere')], 'nowhere has no run'),
        ([str(run_dir), '--output=/dev/null/a'], "--output=/dev/null/a can't be written"),
        ([str(run_dir), '--rounds=0'], '--rounds must be an integer >= 1; got 0'),
    ):
      assert sentence in commands.refused(capsys, report, *arguments)
