"""Tests that documents have the figures of docs/results, and that kept reports are made again."""

import csv
import itertools
import json
import pathlib
import re

import pytest

from tasks import report

_ROOT = pathlib.Path(__file__).parents[2]
# Beginnings of columns' titles in the documents, and columns of cells.csv.
_COLUMNS = {
    'paper: best': 'paper (best, %)',
    'best': 'best (%)',
    'final, padding masked': 'final, padding masked (%)',
    'final': 'final (%)',
    "epsilon, paper's accounting": "epsilon, paper's accounting",
    'epsilon': 'epsilon, sound accountant',
    'uplink': 'uplink (MB)',
    'seeds': 'seeds',
}


def _cells(path):
  """The rows of a cells.csv, which has several tables."""
  with open(path, encoding='utf-8', newline='') as file:
    for row in csv.reader(file):
      if row[0] == 'table':
        header = [name.removeprefix('measured: ') for name in row]
      else:
        yield {name: text.removesuffix(' †') for name, text in zip(header, row)}


def _tables(is_one):
  """Yields each table whose header `is_one`: header, rows and the rows of the cells.csv it names."""
  pages = sorted((_ROOT / 'docs/results').glob('*.md'))
  for document in (_ROOT / 'README.md', _ROOT / 'docs/results.md', _ROOT / 'docs/method.md', *pages):
    linked = []
    for part in document.read_text(encoding='utf-8').split('\n\n'):
      linked = re.findall(r'\(([^()]*cells\.csv)\)', part) or linked
      lines = [line.strip('|').split('|') for line in part.split('\n') if line.startswith('|')]
      header, _, *rows = [[text.strip() for text in line] for line in lines] or [[], []]
      if is_one(header) and linked:
        cells = list(itertools.chain(*(_cells(document.parent / path) for path in linked)))
        yield pytest.param(header, rows, cells, id=f'{document.name}: {header[0]}')


def _agrees(column, text, cell):
  """Returns whether a document's figure is a cell's, to the digits that the document has."""
  if text in ('none', '0'):
    return cell in ('', '0', '0.0')
  if column == 'seeds':
    return str(len(text.split(','))) == cell
  if number := re.match(r'(\d+\.?(\d*)) MB', text):
    return bool(cell) and f'{float(cell):.{len(number[2])}f}' == number[1]
  return text.strip('*') in ('', cell)


def _is_of_settings(header):
  return any('final' in name or name == 'validation set' for name in header)


def _is_table_1(header):
  return header[:1] and header[0].startswith('Table 1')


def _is_of(cell, label):
  """Returns whether a cell has p and C as in a row's label, such as '`dp_fedavg`, C = 0.4'."""
  settings = dict(re.findall(r'\b(p|C) = ([\d.]*\d)', label))
  differences = cell.get('with') or cell.get('differs from the paper in') or ''
  clip = re.search(r'\bclip = ([\d.]*\d)', differences)
  # p of a cell is k / d, which rounds.
  has_p = 'p' not in settings or abs(float(settings['p']) / float(cell['p']) - 1) < 0.01
  return has_p and ('C' not in settings or bool(clip) and float(settings['C']) == float(clip[1]))


_TABLES = list(_tables(_is_of_settings))
assert len(_TABLES) >= 9


@pytest.mark.parametrize('header, rows, cells', _TABLES)
def test_each_documented_number_is_of_a_cell(header, rows, cells):
  for row in rows:
    method = re.findall(r'`(\w+)', row[0] + header[0])[0]
    of_method = [c for c in cells if c.get('algorithm') == method and _is_of(c, row[0])]
    by_column = {}
    for title, text in zip(header[1:], row[1:]):
      column = next((name for name in _COLUMNS if title.startswith(name)), None)
      if column:
        by_column[_COLUMNS[column]] = text
      # The columns that choose a setting: a figure of any run of the method.
      elif not title.startswith(('start', 'gain')) and re.match(r'\**\d+\.\d\d', text):
        assert text.strip('*') in {cell['final (%)'] for cell in of_method}, row
    assert any(
        all(_agrees(column, text, cell.get(column, '')) for column, text in by_column.items())
        for cell in of_method
    ), row


def test_table_1_has_paper_and_measured_accuracies():
  ((header, rows, cells),) = (table.values for table in _tables(_is_table_1))
  assert [title.split(':')[0] for title in header[1:]] == [
      'paper', 'A', 'difference', 'seeds', 'B', 'difference'
  ]
  cells = [cell for cell in cells if cell['table'].startswith('Table 1:') and cell['best (%)']]
  assert {(cell['algorithm'], cell['p']) for cell in cells} == {_method_and_p(row) for row in rows}
  for row in rows:
    paper, best, difference, seeds, standardized, its_difference = row[1:]
    of_row = [cell for cell in cells if (cell['algorithm'], cell['p']) == _method_and_p(row)]
    assert {cell['paper (best, %)'] for cell in of_row} == {paper}, row
    plain_cells, standardized_cells = (
        {
            (cell['best (%)'], cell['seeds']) for cell in of_row
            if ('fashion_mnist_standardize = True' in cell['differs from the paper in']) == is_one
        }
        for is_one in (False, True)
    )
    assert (best, seeds) in plain_cells, row
    assert difference == _difference(best, paper), row
    if standardized == 'not run':
      assert not standardized_cells and not its_difference, row
    else:
      assert standardized_cells == {(standardized, '1')}, row
      assert its_difference == _difference(standardized, paper), row


def _method_and_p(row):
  method, p = re.fullmatch(r'`(\w+)`(?:, p = ([\d.]+))?', row[0]).groups()
  return method, p or '1'


def _difference(best, paper):
  return f'{float(best.split()[0]) - float(paper.split()[0]):+.2f}'


_KEPT = sorted(path.parent for path in (_ROOT / 'docs' / 'results').rglob('runs.json'))
assert _KEPT


@pytest.mark.parametrize('directory', _KEPT, ids=lambda path: str(path.relative_to(_ROOT)))
def test_a_kept_report_is_reproduced(directory, tmp_path):
  records = json.loads((directory / 'runs.json').read_text(encoding='utf-8'))
  # The reports with modules were made with these flags.
  modules = {
      f'--{flag}={name}' for record in records for flag in ('task', 'algorithm')
      if '.' in (name := record['config'][flag])
  }
  output = tmp_path / 'report'
  assert report.main(['report', str(directory), f'--output={output}', *sorted(modules)]) == 0
  assert {path.name for path in output.iterdir()} == {path.name for path in directory.iterdir()}
  for name in ('report.md', 'cells.csv', 'curves.csv', 'runs.json'):
    assert (output / name).read_bytes() == (directory / name).read_bytes(), name
