"""Tests of `PrivacySpec.epsilon` against an accountant that shares no code with dp-accounting's.

The figures are of prv-accountant 0.2.0 (Gopi, Lee, Wutschitz 2021), for Poisson sampling and
one client added or removed; it is no dependency, so they are kept here. Each is

  PRVAccountant(
      prvs=[PoissonSubsampledGaussianMechanism(
          noise_multiplier=sigma, sampling_probability=q)],
      max_self_compositions=[T], eps_error=min(0.005, epsilon / 50), delta_error=delta / 1000,
  ).compute_epsilon(delta=delta, num_self_compositions=[T])
"""

import numpy as np
import pytest

from fedsmp_tff.privacy import spec as spec_lib

_POPULATION = 600_000
# sigma, q, T, delta; its lower bound, estimate and upper bound.
_VECTORS = [
    (10, 1e-4, 100000, 1e-10, 0.01584, 0.01617, 0.01649),
    (10, 1e-4, 100000, 1e-6, 0.00950, 0.00969, 0.00989),
    (1.4, 1/60, 180, 6000**-1.1, 0.62522, 0.63028, 0.63535),
    (1.0, 1/60, 180, 6000**-1.1, 1.20673, 1.21186, 1.21700),
    (2.0, 1/60, 180, 6000**-1.1, 0.36752, 0.37256, 0.37760),
    (2.5, 1/60, 180, 6000**-1.1, 0.27308, 0.27811, 0.28314),
    (0.8, 1e-3, 1000, 1e-5, 0.29850, 0.30356, 0.30861),
    (0.7, 0.01, 50, 1e-5, 2.05675, 2.06205, 2.06735),
    (1.0, 1e-3, 10000, 1e-6, 0.55011, 0.55514, 0.56018),
    (1.0, 1e-4, 100000, 1e-5, 0.12922, 0.13187, 0.13453),
    (0.6, 0.01, 500, 1e-5, 5.79483, 5.80033, 5.80583),
    (3.0, 0.1, 1000, 1e-5, 4.87847, 4.88373, 4.88899),
    (5.0, 0.01, 10000, 1e-6, 0.84168, 0.84673, 0.85178),
    (8.0, 0.5, 100, 1e-5, 2.59169, 2.59684, 2.60199),
    (20.0, 0.2, 2000, 1e-7, 2.20753, 2.21262, 2.21771),
    (30.0, 1e-3, 100000, 1e-5, 0.02830, 0.02888, 0.02946),
    (50.0, 1.0, 1000, 1e-6, 2.91647, 2.92160, 2.92674),
    (1.1, 2560/600000, 14063, 1e-5, 2.37655, 2.38169, 2.38683),
    (2.0, 0.05, 200, 1e-3, 1.00368, 1.00882, 1.01396),
    (0.5, 5e-4, 2000, 1e-6, 3.48276, 3.48816, 3.49356),
]


@pytest.mark.parametrize('sigma, q, rounds, delta, low, estimate, high', _VECTORS)
def test_epsilon_equals_prv_accountant(sigma, q, rounds, delta, low, estimate, high):
  spec = spec_lib.PrivacySpec(
      _POPULATION, round(q * _POPULATION), rounds, sigma, 1.0, delta, num_slots=_POPULATION,
      allow_large_delta=True,
  )
  epsilon = spec.epsilon()
  assert low <= epsilon <= high
  # An upper bound; the grid costs a quarter of a percent at most. The
  # FFT's charge is 28 % of delta with 10^5 rounds at 1e-10, and nothing elsewhere. In a normal
  # tail of z = 6 standard deviations a change of log delta is z^2 times epsilon's relative change;
  # 20 leaves room.
  charge = 1.25 * np.finfo(float).eps * rounds / delta
  assert 0.9999 * estimate <= epsilon <= (1.0025 + charge / 20) * estimate
