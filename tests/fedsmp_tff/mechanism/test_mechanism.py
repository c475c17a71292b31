"""Tests of the options of the private sum: what is refused, and what kind of object they are."""

import math

import numpy as np
import pytest
from scipy import stats

from fedsmp_tff.mechanism import integer_noise
from fedsmp_tff.mechanism import mechanism as mechanism_lib

_gaussian, _integers = mechanism_lib.Gaussian, integer_noise.DiscreteGaussian


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
      (dict(noise=_gaussian(3)), '`bits` must be an integer from 8'),
      # A share of 0.5 / sqrt(100,000) is a fifth of a step; `least` is the fewest that do.
      (dict(num_slots=100_000, noise_multiplier=0.5, noise=_gaussian(8)), 'or `bits` to 11 or more'),
      (dict(num_slots=100_000, noise_multiplier=0.5, noise=_gaussian(10)), 'or `bits` to 11 or more'),
      (dict(value_bound=1.0), '`value_bound`=1.0 needs `clipping_norm=None`'),
      (dict(clipping_norm=None, noise_multiplier=0.0, value_bound=-1.0), 'value_bound'),
      (dict(num_slots=2), '`num_slots` must be'),
      (dict(num_slots=5, min_reports=6), '`min_reports` must be'),
      (dict(min_reports=0), '`min_reports` must be'),
      (dict(noise='gaussian'), '`noise` must be .*Found gaussian'),
      (dict(noise=_integers(5, 8), noise_multiplier=0.01), 'or `bits`'),
      (
          dict(clipping_norm=None, noise_multiplier=0.0, noise=_integers(5)),
          'discrete_gaussian needs a `clip',
      ),
      (
          dict(clipping_norm=None, noise_multiplier=0.0, adaptive_clipping=1),
          '`adaptive_clipping`.*needs a',
      ),
  ])
  def test_options_out_of_range_are_refused(self, options, match):
    with pytest.raises(ValueError, match=match):
      _mechanism(**options)

  def test_shares_are_sized_for_min_reports(self):
    assert _mechanism(num_slots=8).min_reports == 8
    # N(0, C^2 sigma^2 / r): Algorithm 1.
    few = _mechanism(num_slots=8, min_reports=5, noise_multiplier=1.4)
    assert few.share_stddev == pytest.approx(1.4 / math.sqrt(5))

  def test_encoding_follows_from_noise_and_clip(self):
    fine = _mechanism(num_slots=100_000, noise_multiplier=0.5, noise=_gaussian(11))
    assert fine.encoding().bits == 11
    # Real noise: twelve standard deviations of a share on top of the clipped vector.
    assert _mechanism(noise_multiplier=1.5, num_slots=9).encoding().value_bound == 1 + 12 * 0.5
    integers = _mechanism(noise=_integers(5), num_slots=9, min_reports=4)
    assert integers.encoding() == integer_noise.Lattice(integers, bits=16)
    assert mechanism_lib.Mechanism(3).encoding(scale=20.0).value_bound == 16 * 20
    assert mechanism_lib.Mechanism(3, value_bound=2.0).encoding(scale=20.0).value_bound == 2

  def test_make_noise_takes_names_and_numpy_integers(self):
    made = [mechanism_lib.make_noise(name, np.int64(5), np.int32(9)) for name in mechanism_lib.NOISES]
    assert made == [_gaussian(9), _integers(5, 9)]
    assert [type(noise.bits) for noise in made] == [int, int]
    for arguments, match in ((('laplace', 5), "`noise` must be one of .*Found 'laplace'"),
                             (('discrete_gaussian', None), '`num_values` must be a positive')):
      with pytest.raises(ValueError, match=match):
        mechanism_lib.make_noise(*arguments)


class TestEncoding:

  @pytest.mark.parametrize('sigma, num_slots', [(1.4, 100), (0.1, 10_000), (20.0, 1)])
  def test_encoding_leaves_room_for_the_noise_tail(self, sigma, num_slots):
    # A cut share is no post-processing of the sum, and delta does not hold it: none is cut among
    # 10^6 values of 10^5 clients in 10^6 rounds.
    options = mechanism_lib.Mechanism(num_slots, clipping_norm=1.0, noise_multiplier=sigma)
    room = (options.encoding().value_bound - 1) / options.share_stddev
    assert 2 * stats.norm.sf(room) * 1e17 < 1e-15


class TestFixedPoint:

  @pytest.mark.parametrize('clients', [1, 2, 3, 10, 64, 100, 1000, 100_000])
  def test_default_bits_are_the_maximum_for_int32(self, clients):
    encoding = mechanism_lib.Mechanism(clients).encoding()
    assert encoding.wire_bits == 32
    largest = clients * encoding.max_input
    assert encoding.max_input == 2 * (2 ** (encoding.bits - 1) - 1)
    # One bit more would double the sum; a power of two of clients just misses.
    assert largest < 2**31 <= 2 * largest + 4 * clients

  @pytest.mark.parametrize('bits, bound, match', [
      *((bits, 1.0, '`bits` must be an integer from 8') for bits in (7, 60)),
      *((bits, 1.0, '`bits` must be a positive integer') for bits in (0, -3, 8.0)),
      *((20, bound, 'value_bound') for bound in (0, -1, math.inf, math.nan)),
  ])
  def test_bits_and_bound_out_of_range_are_refused(self, bits, bound, match):
    with pytest.raises(ValueError, match=match):
      mechanism_lib.Mechanism(100, noise=_gaussian(bits), value_bound=bound)
