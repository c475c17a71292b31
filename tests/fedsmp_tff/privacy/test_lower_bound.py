"""Tests of the lower bound of epsilon with a fixed number of clients (see `test_pld` too)."""

import pytest

from fedsmp_tff.privacy import lower_bound


class TestFixed:

  def test_a_lower_bound_of_several_kinds_of_rounds(self):
    one = [(1.4, 1 / 60, 100), (1.4, 1 / 60, 80)]
    assert lower_bound.fixed(one, 1e-4) == pytest.approx(
        lower_bound.fixed([(1.4, 1 / 60, 180)], 1e-4), rel=2e-3
    )
    assert lower_bound.fixed([(1e4, 1e-6, 1)], 1e-4) == 0

  def test_more_rounds_and_less_noise_are_never_less(self):
    def bound(sigma, rounds):
      return lower_bound.fixed([(sigma, 1 / 60, rounds)], 1e-4)

    assert 0 < bound(1.4, 90) < bound(1.4, 180) < bound(1.2, 180)
