"""Tests that the suite finds each fault that `tests.planted` plants in privacy code."""

import pytest

from tests import planted


@pytest.mark.slow
@pytest.mark.parametrize('number', range(1, len(planted.FAULTS) + 1))
def test_a_planted_fault_is_caught(number):
  assert planted.main([number]) == 0
