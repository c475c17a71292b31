"""Tests of the tables of a run."""

import csv

import pytest

from tasks import errors
from tasks.training import tables


def _table(path, rounds):
  """A table with rows 0 to `rounds`, and its digest after each."""
  table = tables.Table(path)
  digests = []
  for round_num in range(rounds + 1):
    table.add({'round': round_num, 'loss': round_num / 3, 'epsilon': None})
    digests.append(table.digest())
  return table, digests


class TestTable:

  def test_rows_are_in_the_file_when_they_are_added(self, tmp_path):
    table, _ = _table(tmp_path / 't.csv', 2)
    with open(tmp_path / 't.csv', encoding='utf-8', newline='') as file:
      rows = list(csv.DictReader(file))
    assert rows == list(table.rows())
    assert [r['round'] for r in rows] == ['0', '1', '2']
    assert float(rows[2]['loss']) == 2 / 3 and rows[0]['epsilon'] == ''
    assert table.num_rounds() == 2

  @pytest.mark.parametrize('rest', [b'', b'4', b'4,2.5', b'4,2.5,\r\n5,'])
  def test_keep_takes_back_later_rows_and_goes_on(self, tmp_path, rest):
    path = tmp_path / 't.csv'
    _, digests = _table(path, 3)
    before = path.read_bytes()
    with open(path, 'ab') as file:
      file.write(rest)
    table = tables.Table(path)
    table.keep(1, digests[1])
    assert table.num_rounds() == 1
    for round_num in (2, 3):
      table.add({'round': round_num, 'loss': round_num / 3, 'epsilon': None})
    assert path.read_bytes() == before
    assert (table.digest() == digests[3]).all()

  @pytest.mark.parametrize(
      'damage',
      [
          lambda content: b'',
          lambda content: content[:-1],
          lambda content: content[:-9],
          lambda content: content[: len(content) // 2],
          lambda content: content.replace(b'\r\n2,', b'\r\n2,9', 1),
          lambda content: content.replace(b'\r\n2,', b'\r\n1,', 1),
          lambda content: content.replace(b'round,', b'rounds,', 1),
      ],
  )
  def test_keep_refuses_other_rows_and_changes_nothing(self, tmp_path, damage):
    path = tmp_path / 't.csv'
    _, digests = _table(path, 3)
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    with pytest.raises(errors.InputError, match='t.csv was cut or changed'):
      tables.Table(path).keep(3, digests[3])
    assert path.read_bytes() == damaged

  def test_keep_refuses_a_missing_file(self, tmp_path):
    _, digests = _table(tmp_path / 'a.csv', 1)
    with pytest.raises(errors.InputError):
      tables.Table(tmp_path / 'b.csv').keep(1, digests[1])
