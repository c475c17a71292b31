"""Tests of the numbers of integers modulo 2^b."""

import pytest

from fedsmp_tff.mechanism import lattice as lattice_lib


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
