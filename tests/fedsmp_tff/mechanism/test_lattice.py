"""Tests of the numbers of integers modulo 2^b."""

import dataclasses
import math

import numpy as np
import pytest

from fedsmp_tff.mechanism import lattice as lattice_lib
from fedsmp_tff.mechanism import noise
from fedsmp_tff.privacy import accounting
from fedsmp_tff.privacy import spec as spec_lib


def _lattice(num_values=64, bits=16, sigma=0.0, r=4, **options):
  options = dict(dict(seats=r, min_reporting=r), **options)
  return lattice_lib.Lattice(bits, num_values, sigma, r, **options)


class TestComputation:

  @pytest.mark.parametrize('bits', [7, 31, 16.0])
  def test_refuses_bits(self, bits):
    with pytest.raises(ValueError, match='`bits` must be an integer from 8 to 30'):
      _lattice(bits=bits)

  def test_refuses_steps_so_coarse_that_no_gaussian_dominates(self):
    fine = _lattice(num_values=8317, sigma=0.3, r=100, bits=11)
    assert fine.share_variance >= lattice_lib.LEAST_SHARE_VARIANCE
    with pytest.raises(ValueError, match='variance of 8 squared steps.*Found 8 with .*raise `bits`'):
      _lattice(num_values=8317, sigma=0.3, r=100, bits=8)

  @pytest.mark.parametrize('num_values, sigma, r', [
      (1_000_000, 1.4, 100), (8317, 0.05, 100), (10, 0.3, 1000), (10, 1e-3, 1000),
  ])
  def test_default_bits_are_16_or_the_least_that_will_do(self, num_values, sigma, r):
    bits = lattice_lib.default_bits(num_values, sigma, r, r, r)
    _lattice(num_values, bits, sigma, r)
    assert bits >= 16
    if bits > 16:
      with pytest.raises(ValueError, match='raise `bits`'):
        _lattice(num_values, bits - 1, sigma, r)

  def test_too_wide_noise_is_refused_in_a_sentence(self):
    with pytest.raises(ValueError, match='too wide.*lower `bits`'):
      _ = _lattice(bits=30, sigma=1.0).statistical_distance

  def test_an_odd_number_of_values_is_padded(self):
    assert [_lattice(num_values=n).num_integers for n in (6, 7)] == [6, 8]


class TestStatisticalDistance:

  @pytest.mark.parametrize('num_values, integers', [(1, 2), (7, 8), (64, 64)])
  @pytest.mark.parametrize('seats', [4, 9])
  def test_it_is_of_all_integers_of_all_seats(
      self, monkeypatch, num_values, integers, seats
  ):
    # A table as far from its distribution as a test can see: every integer of every share
    # may be that far off, and the sum as far as all of them.
    far = noise.IntegerTable(0, np.array([0]), np.array([0]), 1e-4)
    monkeypatch.setattr(noise, 'integer_table', lambda variance: far)
    lattice = _lattice(num_values, sigma=1.0, seats=seats, min_reporting=3)
    assert lattice.statistical_distance == pytest.approx(seats * integers * 1e-4)

  def test_epsilon_pays_for_it_in_every_round(self):
    # Renyi DP of the dominating Gaussian, at the delta that is left (a fixed number of clients: no
    # truncation beside it).
    spec = spec_lib.PrivacySpec(
        100, 10, 50, 20.0, 1.0, 1e-3, 'fixed', noise='discrete_gaussian', num_values=6
    )
    distance = 1e-9
    far = noise.IntegerTable(0, np.array([0]), np.array([0]), distance)
    exact = spec.epsilon('fixed_rdp')
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(noise, 'integer_table', lambda variance: far)
      paid = accounting.epsilon([(spec.round, 50)], 'fixed_rdp', spec.delta)
    left = spec.delta - (1 + math.exp(paid)) * 50 * 10 * 6 * distance
    assert paid > exact
    assert paid == pytest.approx(
        dataclasses.replace(spec, delta=left).epsilon('fixed_rdp'), rel=1e-6
    )
