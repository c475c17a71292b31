"""Tests of the Gaussian that dominates discrete noise against exact divergences."""

import math

import numpy as np
import pytest
from scipy import signal

from fedsmp_tff.mechanism import integer_noise
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import discrete_gaussian
from fedsmp_tff.privacy import spec as spec_lib
from tests.support import gaussian_mechanism

_SHIFTS = [(1,), (2,), (3,), (7,), (1, 1), (2, 1), (3, 4), (1, 1, 1), (2, 2, 1)]


def _mechanism(noise_multiplier=0.3, clients_per_round=2, num_values=4, bits=8, **options):
  """Shares of small variance: the finest structure that sums can have."""
  return mechanism_lib.Mechanism(
      clients_per_round, 1.0, noise_multiplier,
      noise=integer_noise.DiscreteGaussian(num_values, bits), **options,
  )


def _sum_of_shares(lattice):
  """Probabilities of the sum, at integers around zero."""
  x = np.arange(-60, 61)
  one = np.exp(-(x**2) / (2 * lattice.share_variance))
  one /= one.sum()
  total = one
  for _ in range(lattice.mechanism.min_reports - 1):
    total = signal.convolve(total, one, method='direct')
  return total[total > 1e-40]


def _delta(shift, noise, epsilon):
  """Exactly, between noise and noise moved by an integer vector."""
  here, there = np.ones(1), np.ones(1)
  for moved in shift:
    p, q = np.zeros((2, len(noise) + moved))
    p[: len(noise)], q[moved:] = noise, noise
    here, there = np.outer(here, p).ravel(), np.outer(there, q).ravel()
    some = (here > 1e-30) | (there > 1e-30)
    here, there = here[some], there[some]
  return np.sum(np.maximum(here - math.exp(epsilon) * there, 0))


def _gaussian_delta(epsilon, mu):
  return math.exp(gaussian_mechanism.log_delta(epsilon, mu))


class TestExecution:

  @pytest.mark.parametrize('shares, sigma', [(1, 0.085), (2, 0.23), (3, 0.4)])
  def test_dominating_gaussian_bounds_every_shift(self, shares, sigma):
    mechanism = _mechanism(sigma, shares)
    lattice, dominating = mechanism.encoding(), discrete_gaussian.dominating_gaussian(mechanism)
    # The standard deviation of the sum in integers.
    stddev = dominating.noise_multiplier * math.sqrt(lattice.squared_norm_bound)
    noise = _sum_of_shares(lattice)
    assert 3 < stddev < 12
    plain, closest = 0.0, 0.0
    for shift in _SHIFTS:
      norm = np.linalg.norm(shift)
      for epsilon in np.linspace(0, 6 * norm / stddev, 25):
        bound = _gaussian_delta(epsilon, norm / stddev)
        if bound < 1e-9:
          continue
        exact = _delta(shift, noise, epsilon)
        assert exact <= bound * (1 + 1e-9)
        closest = max(closest, exact / bound)
        plain = max(plain, exact / _gaussian_delta(
            epsilon, norm / math.sqrt(lattice.share_variance * shares)
        ))
    # It is no empty bound, and noise of the same variance would be none.
    assert closest > 0.75 and plain > 1.01

  @pytest.mark.parametrize('num_slots', [5, 20])
  def test_noise_counts_min_reports_shares(self, num_slots):
    # Each share is a fifth of the variance; slots beyond the fifth may stay empty.
    mechanism = _mechanism(1.0, 4, bits=12, num_slots=num_slots, min_reports=5)
    lattice, dominating = mechanism.encoding(), discrete_gaussian.dominating_gaussian(mechanism)
    # In integer steps; rounding takes a variance of 3 away.
    variance = dominating.noise_multiplier**2 * lattice.squared_norm_bound
    assert variance == pytest.approx((1.0 * lattice.scale) ** 2 - 3, rel=1e-9)
    spec = spec_lib.PrivacySpec(
        100, 4, 1, 1.0, 1.0, 1e-3, num_slots=num_slots, min_reports=5, noise=mechanism.noise
    )
    assert spec.mechanism() == mechanism
    assert (spec.round.noise_multiplier, spec.round.distance) == dominating

  def test_distance_covers_table_and_sums_of_shares(self, monkeypatch):
    mechanism = _mechanism(1.0, num_values=1000, bits=16)
    lattice, found = mechanism.encoding(), discrete_gaussian.dominating_gaussian(mechanism)
    assert found.distance == pytest.approx(lattice.statistical_distance, rel=1e-6)
    assert found.distance >= lattice.statistical_distance
    # Shares so small that their sum is no discrete Gaussian: by its own sum of probabilities.
    monkeypatch.setattr(integer_noise, 'MIN_SHARE_VARIANCE', 0)
    mechanism = _mechanism(0.36, 8)
    small = mechanism.encoding()
    noise = _sum_of_shares(small)
    x = np.arange(len(noise)) - len(noise) // 2
    alone = np.exp(-(x**2) / (2 * small.share_variance * 8))
    apart = np.abs(noise - alone / alone.sum()).sum() / 2
    assert 1e-9 < apart < discrete_gaussian.dominating_gaussian(mechanism).distance / 4

  # At 3 the sums of shares are all that shows, at 0.25 the random rounding.
  @pytest.mark.parametrize('rounding_variance', [3.0, 0.25])
  def test_distance_adds_rounding_and_each_partial_sum(self, monkeypatch, rounding_variance):
    monkeypatch.setattr(integer_noise, 'MIN_SHARE_VARIANCE', 0)
    monkeypatch.setattr(discrete_gaussian, '_ROUNDING_VARIANCE', rounding_variance)
    mechanism = _mechanism(0.36, 8)
    lattice = mechanism.encoding()

    def deviation(variance):
      """Of probabilities from D's, at most: eta, which is largest at c = 0, by its definition."""
      y = np.arange(-99, 100)
      eta = np.sum(np.exp(-(y**2) / (2 * variance))) / math.sqrt(2 * math.pi * variance) - 1
      return 2 * eta / (1 - eta)

    # The rounding's deviation counts whole, and that of sums half, as a total variation distance.
    parts = [deviation(rounding_variance)]
    parts += [deviation(lattice.share_variance * i / (i + 1)) / 2 for i in range(1, 8)]
    found = discrete_gaussian.dominating_gaussian(mechanism).distance
    found -= lattice.statistical_distance
    assert found == pytest.approx(lattice.num_integers * sum(parts), rel=1e-6)

  @pytest.mark.parametrize('min_reports', [10, 1000, 1001, 5000])
  def test_distance_of_many_shares_bounds_the_exact_sum(self, min_reports, monkeypatch):
    # Small shares, whose ratios can be seen; the guarantee needs larger ones.
    monkeypatch.setattr(integer_noise, 'MIN_SHARE_VARIANCE', 0)
    monkeypatch.setattr(integer_noise.Lattice, 'share_variance', 0.4)
    monkeypatch.setattr(integer_noise.Lattice, 'statistical_distance', 0.0)
    mechanism = _mechanism(2.0, num_slots=min_reports, bits=20)
    distance = discrete_gaussian.dominating_gaussian(mechanism).distance / 4
    ratios = [
        discrete_gaussian._ratio(0.4 * i / (i + 1)) for i in range(1, min_reports)
    ]
    exact = sum(ratios) + 2 * discrete_gaussian._ratio(3.0)
    assert exact * (1 - 1e-12) <= distance <= exact * 1.01
