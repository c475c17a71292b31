"""The continuous Gaussian that dominates sums of discrete Gaussian noise.

In many dimensions, for integer vectors that differ in any direction, the worst pair of releases is
not known. It need not be: except for a negligible distance, the integers are post-processing of a
release with continuous Gaussian noise, whose variance is smaller by t^2.

Write eta(v) = 2 sum_(m >= 1) exp(-2 pi^2 v m^2), D(v) for the discrete Gaussian with
probabilities proportional to exp(-y^2 / (2 v)). For any c, the sum of exp(-(y - c)^2 / (2 v)) over
integers y is sqrt(2 pi v) times a number in 1 +- eta(v) (Poisson summation). So

* rounding: let x be N(0, a^2), and y an integer drawn with probability proportional to
  exp(-(y - x)^2 / (2 t^2)). Then y's probabilities are D(a^2 + t^2)'s times numbers in
  1 +- 2 eta(t^2) / (1 - eta(t^2)). This rounding commutes with integer shifts: rounding
  x + v gives the distribution of y + v for every integer v. So integers + D(a^2 + t^2) are
  integers + N(0, a^2), rounded at random, whatever the integers are and in every coordinate;
* sums: the sum of independent D(v) and D(w) has D(v + w)'s probabilities times numbers
  in (1 +- eta) / (1 -+ eta), eta = eta(v w / (v + w)).

(Peikert 2010, Theorem 3.1; Kairouz, Liu, Steinke 2021, Section 4, has the sums.) With t^2 = 3,
eta is 4e-26. Shares beyond the minimum are post-processing too.
"""

import math
from typing import NamedTuple

from fedsmp_tff.mechanism import mechanism as mechanism_lib

_ROUNDING_VARIANCE = 3.0  # t^2.
_EXACT_SUMS = 1000  # A term each.


class DominatingGaussian(NamedTuple):
  """A Gaussian mechanism and the distance of releases from its post-processing.

  Attributes:
    noise_multiplier: Standard deviation over the largest norm of a client's vector.
    distance: Total variation distance of releases from post-processing.
  """

  noise_multiplier: float
  distance: float


def dominating_gaussian(mechanism: mechanism_lib.Mechanism) -> DominatingGaussian:
  """Returns the dominating Gaussian mechanism for one client added or removed.

  Gaussian noise dominates itself. Integer noise is the sum of the minimum number of shares in a
  release.
  """
  if isinstance(mechanism.noise, mechanism_lib.Gaussian) or not mechanism.noise_multiplier:
    return DominatingGaussian(mechanism.noise_multiplier, 0.0)
  lattice, num = mechanism.encoding(), mechanism.min_reports
  share = lattice.share_variance
  variance = share * num - _ROUNDING_VARIANCE
  rounding = 2 * _ratio(_ROUNDING_VARIANCE)
  sums = sum(_ratio(share * i / (i + 1)) for i in range(1, min(num, _EXACT_SUMS)))
  # Later ratios are smaller: their variances grow.
  sums += max(0, num - _EXACT_SUMS) * _ratio(share * _EXACT_SUMS / (_EXACT_SUMS + 1))
  return DominatingGaussian(
      math.sqrt(variance / lattice.squared_norm_bound),
      lattice.num_integers * (rounding + sums) + lattice.statistical_distance,
  )


def _ratio(variance: float) -> float:
  """Returns an upper bound on eta / (1 - eta)."""
  first = math.exp(-2 * math.pi**2 * variance)
  eta = 2 * first / (1 - first**3)
  return eta / (1 - eta)
