"""What a run costs: sampling, accounting, ledger and audit."""
