"""Tests of what all post-processing shares."""

import math

import pytest

from fedsmp_tff.post_processing import base


@pytest.mark.parametrize('decay', [-0.1, 1.0, 2.0, math.nan])
def test_refuses_decays(decay):
  with pytest.raises(ValueError, match='`decay` must be at least 0 and less than 1. Found'):
    base.check_decay(decay)


@pytest.mark.parametrize('decay', [0.0, 0.5, 0.999])
def test_takes_decays(decay):
  base.check_decay(decay)


@pytest.mark.parametrize('kind', [base.PostProcessing, base.Factors, base.Guess, base.Filter])
def test_kinds_are_abstract(kind):
  with pytest.raises(TypeError, match='abstract'):
    kind()


def test_filters_factors_and_guesses_remember_releases():
  assert all(
      issubclass(kind, base.PostProcessing) for kind in (base.Factors, base.Guess, base.Filter)
  )
