"""Tests of a run's directory."""

from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks.training import run_directory


def test_runs_that_are_overwritten_within_a_second_keep_their_ledgers(tmp_path):
  spec = spec_lib.PrivacySpec(60, 10, 5, 1.4, 0.5, 1e-3)
  for number in range(4):
    with run_directory.RunDirectory(tmp_path / 'a', overwrite=True) as out:
      out.begin({'run_id': str(number)}, {})
      ledger_lib.Ledger(out.path / run_directory.LEDGER, spec, str(number)).close()
  runs = sorted(record.run for _, record in run_directory.ledgers(out.path))
  assert runs == ['0', '1', '2', '3']
