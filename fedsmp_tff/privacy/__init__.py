"""The privacy cost of a run: sampling, accounting, ledger and audit."""
