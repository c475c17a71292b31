"""Tests that the suite finds each fault that `tests.planted` plants in privacy code."""

import pytest

from tests import planted


@pytest.mark.slow
@pytest.mark.parametrize('fault', planted.FAULTS, ids=lambda fault: fault.file)
def test_a_planted_fault_is_caught(fault):
  assert planted.caught(fault)
