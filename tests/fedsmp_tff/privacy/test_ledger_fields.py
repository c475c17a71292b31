"""Tests that a ledger says only what a run can say, however right its hash chain is."""

import pytest

from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib
from tests.support import malformed_ledgers


def test_a_valid_ledger_is_read(tmp_path):
  malformed_ledgers.write(tmp_path / 'ledger', {}, [0, 1])
  record = ledger_lib.read(tmp_path / 'ledger')
  assert record.rounds == [0, 1] and record.data == 'people' and not record.seeded
  assert record.spec == spec_lib.PrivacySpec(6000, 100, 180, 1.4, 1.0, 1e-5)


@pytest.mark.parametrize('name', malformed_ledgers.CASES)
def test_wrong_fields_in_a_valid_chain_are_refused(tmp_path, name):
  malformed_ledgers.write(tmp_path / 'ledger', *malformed_ledgers.CASES[name])
  with pytest.raises(ledger_lib.LedgerError, match='ledger (is not a ledger of|was changed)') as e:
    ledger_lib.read(tmp_path / 'ledger')
  assert str(e.value).isprintable() and len(str(e.value)) < 600


@pytest.mark.parametrize('names', [dict(data=3), dict(initial_weights=None), dict(run=b'a')])
def test_names_of_wrong_types_are_not_written(tmp_path, names):
  path, spec = tmp_path / 'ledger', spec_lib.PrivacySpec(60, 10, 5, 1.4, 0.5, 1e-3)
  with pytest.raises((TypeError, ValueError)):
    ledger_lib.Ledger(path, spec, **names)
  assert not path.exists()
  ledger_lib.Ledger(path, spec).close()
  assert ledger_lib.read(path).spec == spec
