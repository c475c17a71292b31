"""Tests of the options of the private sum: what is refused, and what kind of object they are."""

import math

import pytest
from scipy import stats

from fedsmp_tff.mechanism import integer_noise
from fedsmp_tff.mechanism import mechanism as mechanism_lib


def _mechanism(**options):
  valid = dict(clients_per_round=3, clipping_norm=1.0, noise_multiplier=1.0)
  return mechanism_lib.Mechanism(**{**valid, **options})


class TestComputation:

  @pytest.mark.parametrize('options, match', [
      (dict(clients_per_round=0), 'clients_per_round'),
      (dict(clients_per_round=2.0), 'clients_per_round'),
      (dict(clipping_norm=0.0), 'clipping_norm'),
      (dict(clipping_norm=float('nan')), 'clipping_norm'),
      (dict(noise_multiplier=-1.0), 'noise_multiplier'),
      (dict(noise_multiplier=float('nan')), 'noise_multiplier'),
      (dict(clipping_norm=None), 'needs a `clipping_norm`'),
      (dict(bits=3), 'bits'),
      # A share of 0.5 / sqrt(100,000) is a fifth of a step; `least` is the fewest that do.
      (dict(num_slots=100_000, noise_multiplier=0.5, bits=8), 'or `bits` to 11 or more'),
      (dict(num_slots=100_000, noise_multiplier=0.5, bits=10), 'or `bits` to 11 or more'),
      (dict(value_bound=1.0), '`value_bound`=1.0 needs `clipping_norm=None`'),
      (dict(clipping_norm=None, noise_multiplier=0.0, value_bound=-1.0), 'value_bound'),
      (dict(num_slots=2), '`num_slots` must be'),
      (dict(num_slots=5, min_reports=6), '`min_reports` must be'),
      (dict(min_reports=0), '`min_reports` must be'),
      (dict(noise='laplace'), "`noise` must be .*Found 'laplace'"),
      (dict(noise='discrete_gaussian', bits=8, noise_multiplier=0.01), 'or `bits`'),
      (
          dict(clipping_norm=None, noise_multiplier=0.0, noise='discrete_gaussian'),
          "'discrete_gaussian' needs a `clip",
      ),
      *(
          (dict(clipping_norm=None, noise_multiplier=0.0, **{rule: 1}), f'`{rule}`.*needs a')
          for rule in ('adaptive_clipping', 'clipping_schedule')
      ),
      (dict(adaptive_clipping=1, clipping_schedule=1), 'both set C'),
  ])
  def test_options_out_of_range_are_refused(self, options, match):
    with pytest.raises(ValueError, match=match):
      _mechanism(**options)

  def test_shares_are_sized_for_min_reports(self):
    assert _mechanism(num_slots=8).noise_shares == 8
    # N(0, C^2 sigma^2 / r): Algorithm 1.
    few = _mechanism(num_slots=8, min_reports=5, noise_multiplier=1.4)
    assert few.share_stddev == pytest.approx(1.4 / math.sqrt(5))

  def test_encoding_follows_from_noise_and_clip(self):
    assert _mechanism(num_slots=100_000, noise_multiplier=0.5, bits=11).bits == 11
    # Real noise: twelve standard deviations of a share on top of the clipped vector.
    real = _mechanism(noise_multiplier=1.5, num_slots=9).encoding(num_values=5)
    assert real == mechanism_lib.FixedPoint(mechanism_lib.default_bits(9), 1 + 12 * 0.5, 9)
    integer = _mechanism(noise='discrete_gaussian', num_slots=9, min_reports=4).encoding(5)
    assert integer == integer_noise.Lattice(16, 5, 1.0, 3, 9, 4)
    unclipped = mechanism_lib.Mechanism(3).encoding(num_values=5, scale=20.0)
    assert unclipped.value_bound == 16 * 20


class TestEncoding:

  @pytest.mark.parametrize('sigma, num_slots', [(1.4, 100), (0.1, 10_000), (20.0, 1)])
  def test_encoding_leaves_room_for_the_noise_tail(self, sigma, num_slots):
    # A cut share is no post-processing of the sum, and delta does not hold it: none is cut among
    # 10^6 values of 10^5 clients in 10^6 rounds.
    options = mechanism_lib.Mechanism(num_slots, clipping_norm=1.0, noise_multiplier=sigma)
    room = (options.encoding(num_values=5).value_bound - 1) / options.share_stddev
    assert 2 * stats.norm.sf(room) * 1e17 < 1e-15


class TestFixedPoint:

  @pytest.mark.parametrize('clients', [1, 2, 3, 10, 64, 100, 1000, 100_000])
  def test_default_bits_are_the_maximum_for_int32(self, clients):
    bits = mechanism_lib.default_bits(clients)
    assert mechanism_lib.FixedPoint(bits, 1.0, clients).wire_bits == 32
    largest = clients * 2 * (2 ** (bits - 1) - 1)
    # One bit more would double the sum; a power of two of clients just misses.
    assert largest < 2**31 <= 2 * largest + 4 * clients

  @pytest.mark.parametrize('bits, bound, match', [
      *((bits, 1.0, '`bits` must be an integer from 8') for bits in (7, 0, -3, 60, 8.0)),
      *((20, bound, 'value_bound') for bound in (0, -1, math.inf, math.nan)),
  ])
  def test_bits_and_bound_out_of_range_are_refused(self, bits, bound, match):
    with pytest.raises(ValueError, match=match):
      mechanism_lib.FixedPoint(bits, bound, 100)
