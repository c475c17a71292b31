"""Tests that the suite finds each fault that `tests.planted` plants in privacy code."""

import pytest

from tests import planted


@pytest.mark.slow
@pytest.mark.parametrize(
    'fault', planted.FAULTS, ids=[f'{i}-{f.file}' for i, f in enumerate(planted.FAULTS, 1)]
)
def test_a_planted_fault_is_caught(fault):
  assert planted.caught(fault)
