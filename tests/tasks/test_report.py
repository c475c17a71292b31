"""Tests of `python -m tasks.report`: the paper beside ours, as text, tables and pictures."""

import csv
import json

import matplotlib.image
import numpy as np

from tasks import report
from tests.support import commands
from tests.support import runs_on_disk


def _write(root, name, accuracies, **options):
  return runs_on_disk.write(root / name, accuracies=accuracies, **options)


def _cells(output):
  """Rows of cells.csv by the title of their table, as dictionaries."""
  found = {}
  with open(output / 'cells.csv', encoding='utf-8', newline='') as file:
    for line in csv.reader(file):
      if line[0] == 'table':
        header = line[1:]
      else:
        found.setdefault(line[0], []).append(dict(zip(header, line[1:])))
  return found


class TestExecution:

  def test_ours_beside_the_papers(self, tmp_path, capsys):
    # 180 rounds, of which only the last but one and the last are measured.
    for seed, best in ((1, 0.81), (2, 0.83)):
      accuracies = [0.1, *[None] * 178, best, 0.8]
      _write(tmp_path / 'runs', str(seed), accuracies, seed=seed)
    output = tmp_path / 'out'
    assert report.main(['report', str(tmp_path / 'runs'), f'--output={output}']) == 0
    assert str(output / 'report.md') in capsys.readouterr().out
    cells = _cells(output)
    (row,) = (
        row for row in cells['Table 1: Fashion-MNIST']
        if (row['algorithm'], row['p']) == ('fedsmp_topk', '0.005')
    )
    assert row['paper (best, %)'] == '80.76 ± 0.27'
    assert row['measured: best (%)'] == '82.00 ± 1.41' and row['difference'] == '+1.24'
    assert row['measured: final (%)'] == '80.00 ± 0.00' and row['seeds'] == '2'
    assert row["epsilon, paper's table"] == '1.01'
    assert row["epsilon, paper's accounting"] == '36' and row['epsilon, valid'] == '18'
    assert row['uplink, paper (MB)'] == '0.1' and row['uplink (MB)'] == '0.009'
    assert row['differs from the paper in'] == ''
    # The same runs are a cell of Table 5; the other cells are shown as not run.
    assert any(r['measured: best (%)'] == '82.00 ± 1.41' for r in cells[
        'Table 5: Fashion-MNIST, top-k, over epsilon'
    ])
    others = [r for r in cells['Table 1: Fashion-MNIST'] if r is not row]
    assert len(others) == 15 and all(r['measured: best (%)'] == 'not run' for r in others)
    text = (output / 'report.md').read_text()
    assert '1 of 16 cells were run.' in text and 'Table 2: SVHN (16 cells); Table 3' in text
    assert '82.00 ± 1.41' in text and 'Table 9' in text

  def test_what_differs_from_the_paper_is_said(self, tmp_path):
    runs = tmp_path / 'runs'
    _write(runs, 'a', [0.1, 0.8], rounds='all', clip=0.5, sampling='poisson', mask_rounds=5)
    _write(runs, 'b', [0.1, 0.7], rounds='all', noise_multiplier=1.45)
    output = tmp_path / 'out'
    assert report.main(['report', str(tmp_path / 'runs'), f'--output={output}']) == 0
    ours = [
        row for row in _cells(output)['Table 1: Fashion-MNIST'] if row['seeds']
    ]
    assert [row['differs from the paper in'] for row in ours] == [
        'mask_rounds = 5, clip = 0.5, sampling = poisson',
        'sigma = 1.45',
    ]

  def test_accuracy_on_clients_own_examples_is_marked(self, tmp_path):
    runs = tmp_path / 'runs'
    accuracies = {'own': 0.8, 'others': 0.7, 'not_private': 0.9}
    for name, accuracy in accuracies.items():
      private = {} if name == 'not_private' else dict(clip=0.5 + accuracy)
      if name == 'not_private':
        private = dict(algorithm='fedavg_topk', clients_per_round=50)
      run = _write(runs, name, [0.1, accuracy], rounds='all', **private)
      config = json.loads((run / 'config.json').read_text())
      config['test_outside_guarantee'] = name != 'others'
      (run / 'config.json').write_text(json.dumps(config))
    output = tmp_path / 'out'
    assert report.main(['report', str(runs), f'--output={output}']) == 0
    cells = _cells(output)
    ours = [row for row in cells['Table 1: Fashion-MNIST'] if row['seeds']]
    assert {row['measured: final (%)'] for row in ours} == {'80.00 †', '70.00'}
    assert {row['measured: best (%)'] for row in ours} == {'80.00 †', '70.00'}
    (other,) = next(some for title, some in cells.items() if title.startswith('Runs without'))
    assert other['final (%)'] == '90.00'  # Nothing of it is inside.
    sentence = 'exact functions of clients\' own examples, OUTSIDE (epsilon, delta)'
    text = (output / 'report.md').read_text()
    # Tables 1 and 5 have the run.
    assert text.count(sentence) == 2 and '80.00 †' in text

  def test_unfinished_runs_and_those_of_no_row(self, tmp_path):
    _write(tmp_path / 'runs', 'a', [0.1, 0.8], rounds=7)
    _write(tmp_path / 'runs', 'b', [0.1, 0.4], algorithm='fedavg_topk', clients_per_round=50)
    _write(tmp_path / 'runs', 'c', [])
    output = tmp_path / 'out'
    assert report.main(['report', str(tmp_path / 'runs'), f'--output={output}']) == 0
    cells = _cells(output)
    rows = next(some for title, some in cells.items() if title.startswith('Runs without'))
    assert [row['rounds'] for row in rows] == ['1 of 7', '1']
    assert ['clients_per_round = 50' in row['with'] for row in rows] == [False, True]
    assert [row['final (%)'] for row in rows] == ['80.00', '40.00']
    assert 'Table 1: Fashion-MNIST' not in cells  # Nothing of it was run.
    assert [(row['run'], row['rounds'], row['accuracy (%)']) for row in cells['The runs']] == [
        ('a', '1 of 7', '80.00'), ('b', '1 of 1', '40.00')
    ]
    would = 'Every private run used a seed: epsilon is what fresh noise would give.'
    assert (output / 'report.md').read_text().count(would) == 1
    # At a round that both have, both are complete; shorter than the paper's, neither is a row.
    argv = ['report', str(tmp_path / 'runs'), f'--output={output}', '--rounds=1']
    assert report.main(argv) == 0
    cells = _cells(output)
    rows = next(some for title, some in cells.items() if title.startswith('Runs without'))
    assert [row['rounds'] for row in rows] == ['1', '1']
    assert 'Table 1: Fashion-MNIST' not in cells

  def test_padding_has_columns_where_there_is_some(self, tmp_path):
    runs = tmp_path / 'runs'
    for name, accuracies in (('a', [0.1, 0.6]), ('b', [0.1, 0.4])):
      run = _write(runs, name, accuracies, seed=ord(name))
      assert report.main(['report', str(run), f'--output={tmp_path / "out"}']) == 0
      assert 'padding masked' not in (tmp_path / 'out' / 'cells.csv').read_text()
      rows = commands.rows(run / 'metrics.csv')
      for row, accuracy in zip(rows, accuracies):
        row |= {'test_accuracy_masked': accuracy / 2, 'test_accuracy_counted': accuracy}
      runs_on_disk.write_csv(run / 'metrics.csv', rows)
    assert report.main(['report', str(runs), f'--output={tmp_path / "out"}']) == 0
    (row,) = next(
        some for title, some in _cells(tmp_path / 'out').items() if title.startswith('Runs without')
    )
    assert row['final, padding masked (%)'] == '25.00 ± 7.07'
    assert row['final, padding counted (%)'] == '50.00 ± 14.14'

  def test_public_data_alone_is_a_row(self, tmp_path):
    _write(tmp_path / 'runs', 'a', [0.84], algorithm='public_only')
    _write(tmp_path / 'runs', 'b', [0.1, 0.4])
    output = tmp_path / 'out'
    assert report.main(['report', str(tmp_path / 'runs'), f'--output={output}']) == 0
    rows = next(
        some for title, some in _cells(output).items() if title.startswith('Runs without')
    )
    row = rows[0]
    assert (row['algorithm'], row['rounds'], row['final (%)']) == ('public_only', '0', '84.00')
    assert row['uplink (MB)'] == '0' and row['epsilon, valid'] == ''

  def test_what_all_share_is_said_once(self, tmp_path):
    shared = {'validation_examples': 16, 'clip_schedule': 'learning_rate'}
    _write(tmp_path / 'runs', 'a', [0.1, 0.4], **shared)
    _write(tmp_path / 'runs', 'b', [0.1, 0.8], batch_size=20, **shared)
    output = tmp_path / 'out'
    assert report.main(['report', str(tmp_path / 'runs'), f'--output={output}']) == 0
    rows = next(
        some for title, some in _cells(output).items() if title.startswith('Runs without')
    )
    assert [row['with'] for row in rows] == ['batch_size = 20', '']
    text = (output / 'report.md').read_text()
    assert text.count('clip_schedule = learning_rate') == text.count('validation_examples = 16') == 1

  def test_pictures(self, tmp_path):
    for algorithm in ('fedsmp_topk', 'fedavg_topk'):
      for p in (0.005, 0.1, 0.4):
        _write(tmp_path / 'runs', f'{algorithm}{p}', [0.1, p], algorithm=algorithm, p=p)
    output = tmp_path / 'out'
    assert report.main(['report', str(tmp_path / 'runs'), f'--output={output}']) == 0
    names = [f'fashion_mnist_{name}.png' for name in ('ratio', 'rounds')]
    assert sorted(path.name for path in output.glob('*.png')) == names
    for name in names:
      assert np.std(matplotlib.image.imread(output / name)) > 0.01

  def test_reads_what_tasks_run_writes(self, tmp_path, data_dir):
    run_dir = tmp_path / 'run'
    assert commands.main(commands.tiny(data_dir, run_dir, '--algorithm=dp_fedavg')) == 0
    output = tmp_path / 'out'
    assert report.main(['report', str(run_dir), f'--output={output}']) == 0
    (row,) = next(
        some for title, some in _cells(output).items() if title.startswith('Runs without')
    )
    last = commands.rows(run_dir / 'metrics.csv')[-1]
    assert row['final (%)'] == f'{100 * float(last["test_accuracy"]):.2f}'
    assert row['epsilon, valid'] == f'{float(last["epsilon"]):.3g}'
    assert row["epsilon, paper's accounting"] == f'{float(last["epsilon_paper"]):.3g}'
    assert 'batch_size = 5' in row['with']
    assert 'used a seed' not in (output / 'report.md').read_text()

  def test_one_sentence_and_status_2(self, tmp_path, capsys):
    run_dir = _write(tmp_path, 'run', [0.1, 0.2])
    for arguments, sentence in (
        ([], 'no run directory is named'),
        ([str(tmp_path / 'nowhere')], 'nowhere has no run'),
        ([str(run_dir), '--output=/dev/null/a'], "--output=/dev/null/a can't be written"),
        ([str(run_dir), '--rounds=0'], '--rounds must be an integer >= 1; got 0'),
    ):
      assert sentence in commands.refused(capsys, report, *arguments)

  def test_help(self, capsys):
    assert report.main(['report', '--help']) == 0
    assert '--rounds:' in capsys.readouterr().out
