"""Tests of the numbers of integers modulo 2^b."""

import dataclasses
import math

import numpy as np
import pytest

from fedsmp_tff.mechanism import lattice as lattice_lib
from fedsmp_tff.mechanism import noise
from fedsmp_tff.privacy import accounting
from fedsmp_tff.privacy import spec as spec_lib

_KINDS = ('discrete_gaussian', 'skellam')


def _lattice(kind='skellam', num_values=64, bits=16, sigma=0.0, r=4, **options):
  options = dict(dict(seats=r, min_reporting=r), **options)
  return lattice_lib.Lattice(kind, num_values, bits, sigma, r, **options)


class TestComputation:

  @pytest.mark.parametrize('bits', [7, 31, 16.0])
  def test_refuses_bits(self, bits):
    with pytest.raises(ValueError, match='`bits` must be an integer from 8 to 30'):
      _lattice(bits=bits)

  def test_refuses_other_noise(self):
    with pytest.raises(ValueError, match="`noise` must be one of.*Found 'gaussian'"):
      _lattice('gaussian')

  def test_too_wide_noise_is_refused_in_a_sentence(self):
    with pytest.raises(ValueError, match='too wide.*lower `bits`'):
      _ = _lattice(bits=30, sigma=1.0).statistical_distance

  def test_an_odd_number_of_values_is_padded_where_it_is_rotated(self):
    assert [_lattice(num_values=n).num_integers for n in (6, 7)] == [6, 8]
    assert _lattice(num_values=7, rotate=False).num_integers == 7


class TestStatisticalDistance:

  @pytest.mark.parametrize('kind', _KINDS)
  @pytest.mark.parametrize('num_values, integers', [(1, 2), (7, 8), (64, 64)])
  @pytest.mark.parametrize('seats', [4, 9])
  def test_it_is_of_all_integers_of_all_seats(
      self, monkeypatch, kind, num_values, integers, seats
  ):
    # A table as far from its distribution as a test can see: every integer of every share
    # may be that far off, and the sum as far as all of them.
    far = noise.IntegerTable(0, np.array([0]), np.array([0]), 1e-4)
    monkeypatch.setattr(noise, 'integer_table', lambda kind, variance: far)
    lattice = _lattice(kind, num_values, sigma=1.0, seats=seats, min_reporting=3)
    assert lattice.statistical_distance == pytest.approx(seats * integers * 1e-4)

  def test_epsilon_pays_for_it_in_every_round(self):
    # Renyi DP of the exact distribution, at the delta that is left (a fixed number of
    # clients: no truncation beside it).
    spec = spec_lib.PrivacySpec(
        100, 10, 50, 20.0, 1.0, 1e-3, 'fixed', noise='skellam', num_values=6
    )
    distance = 1e-9
    far = noise.IntegerTable(0, np.array([0]), np.array([0]), distance)
    exact = spec.epsilon()
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(noise, 'integer_table', lambda kind, variance: far)
      paid = accounting.epsilon([(spec.round, 50)], 'fixed_rdp', spec.delta)
    left = spec.delta - (1 + math.exp(paid)) * 50 * 10 * 6 * distance
    assert paid > exact
    assert paid == pytest.approx(dataclasses.replace(spec, delta=left).epsilon(), rel=1e-6)
