"""Tests of the tables of a run."""

import pytest

from tasks import errors
from tasks.training import tables


def _table(path, rounds):
  """A table with rows 0 to `rounds`, and its digest after each."""
  table, digests = tables.Table(path), []
  for round_num in range(rounds + 1):
    table.add(_row(round_num))
    digests.append(table.digest())
  return table, digests


def _row(round_num):
  return {'round': round_num, 'loss': round_num / 3, 'epsilon': None}


@pytest.mark.parametrize('rest', [b'', b'4', b'4,2.5', b'4,2.5,\r\n5,'])
def test_only_whole_rows_are_read_and_later_ones_removed(tmp_path, rest):
  path = tmp_path / 't.csv'
  _, digests = _table(path, 3)
  before = path.read_bytes()
  path.write_bytes(before + rest)
  table = tables.Table(path)
  # A row that is not whole is not read.
  assert [row['loss'] for row in table.rows()][:4] == [str(i / 3) for i in range(4)]
  assert len(table.rows()) == 4 + rest.count(b'\n')
  table.keep(1, digests[1])
  assert [row['round'] for row in table.rows()] == ['0', '1']
  table.add(_row(2))
  table.add(_row(3))
  assert path.read_bytes() == before and (table.digest() == digests[3]).all()


@pytest.mark.parametrize('damage', [
    lambda content: b'',
    lambda content: content[:-1],
    lambda content: content.replace(b'\r\n2,', b'\r\n1,', 1),
])
def test_keep_refuses_other_rows_and_changes_nothing(tmp_path, damage):
  path = tmp_path / 't.csv'
  _, digests = _table(path, 3)
  damaged = damage(path.read_bytes())
  path.write_bytes(damaged)
  with pytest.raises(errors.InputError, match='t.csv was cut or changed'):
    tables.Table(path).keep(3, digests[3])
  assert path.read_bytes() == damaged
