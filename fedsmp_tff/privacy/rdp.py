"""Renyi DP of one round, for noise of any kind, with amplification by sampling.

A curve maps an integer order alpha >= 2 to the Renyi divergence between the releases of two
neighbouring cohorts when nobody is sampled. The two amplification theorems take any curve,
so that they are valid for integer noise too; `accounting` converts the result to (epsilon, delta).
"""

from collections.abc import Callable, Sequence
import functools
import math

import numpy as np
from scipy import special

from fedsmp_tff.mechanism import lattice as lattice_lib
from fedsmp_tff.mechanism import noise

Curve = Callable[[int], float]


def poisson(curve: Curve, sampling_rate: float, orders: Sequence[int]) -> np.ndarray:
  """Renyi DP of a round with Poisson sampling, one client added or removed.

  The divergence of (1 - q) Q + q P from Q is the binomial expansion

    1/(alpha - 1) log sum_j C(alpha, j) (1 - q)^(alpha - j) q^j exp((j - 1) curve(j)),

  an equality where the curve is one. The other direction is no larger where a
  reflection exchanges P and Q (Mironov, Talwar, Zhang 2019, Theorem 5): noise that
  is symmetric about zero, added to vectors that differ by one client's. Joint convexity
  carries both over to a client whose vector is itself random (rounded).

  Args:
    curve: Between cohorts that differ by one client added or removed.
    sampling_rate: q.
    orders: Integers at least 2.

  Returns:
    Divergences at the orders.
  """
  if sampling_rate == 1:
    return np.array([curve(a) for a in orders])
  found = []
  for order in orders:
    j = np.arange(order + 1)
    log_terms = (
        _log_binomial(order, j)
        + (order - j) * math.log1p(-sampling_rate)
        + j * math.log(sampling_rate)
        + np.array([0.0, 0.0, *((i - 1) * curve(i) for i in range(2, order + 1))])
    )
    found.append(max(special.logsumexp(log_terms), 0.0) / (order - 1))
  return np.array(found)


def fixed(curve: Curve, sampling_rate: float, orders: Sequence[int]) -> np.ndarray:
  """Renyi DP of a round with r of n clients, one replaced, for any mechanism.

  Wang, Balle, Kasiviswanathan 2019, Theorem 9 (Lemma 5 of the paper), with an unbounded
  privacy loss.

  Args:
    curve: Between cohorts that differ by one client replaced.
    sampling_rate: r / n.
    orders: Integers at least 2.

  Returns:
    Divergences at the orders.
  """
  if sampling_rate == 1:
    return np.array([curve(a) for a in orders])
  log_rate = math.log(sampling_rate)
  second = curve(2)
  # min(4 (e^s - 1), 2 e^s), which is the latter from s = log 2 on.
  log_least = (
      math.log(4 * math.expm1(second)) if second < math.log(2) else math.log(2) + second
  )
  found = []
  for order in orders:
    j = np.arange(3, order + 1)
    log_terms = np.concatenate([
        [0.0, 2 * log_rate + _log_binomial(order, 2) + log_least],
        math.log(2) + _log_binomial(order, j) + j * log_rate
        + np.array([(i - 1) * curve(i) for i in range(3, order + 1)]),
    ])
    found.append(special.logsumexp(log_terms) / (order - 1))
  return np.array(found)


def curve_of(lattice: lattice_lib.Lattice, moved: int) -> Curve:
  """Returns the Renyi divergence between releases of which one client's vector is another.

  `DISCRETE_GAUSSIAN`: concentrated DP of sums of discrete Gaussians (nearly, not
  exactly, discrete Gaussian), Kairouz, Liu, Steinke 2021. `SKELLAM`: Renyi DP of the
  multi-dimensional Skellam mechanism, Agarwal, Kairouz, Liu 2021.

  Args:
    lattice: The integers that leave clients.
    moved: 1 for a client added or removed, 2 for one replaced: how many vectors'
      norms the integers before noise may move by.
  """
  norm = moved * math.sqrt(lattice.squared_norm_bound)
  variance = lattice.share_variance * lattice.min_reporting
  return functools.partial(
      _discrete_gaussian if lattice.kind == noise.DISCRETE_GAUSSIAN else _skellam,
      lattice, norm, variance,
  )


def _discrete_gaussian(
    lattice: lattice_lib.Lattice, norm: float, variance: float, order: int
) -> float:
  if not variance:
    return math.inf
  excess = _sum_excess(lattice.share_variance, lattice.seats)
  num = lattice.num_integers
  epsilon = min(
      math.sqrt(norm**2 / variance + excess * num / 2),
      norm / math.sqrt(variance) + excess * math.sqrt(num),
  )
  return order * epsilon**2 / 2


def _skellam(lattice: lattice_lib.Lattice, norm: float, variance: float, order: int) -> float:
  if not variance:
    return math.inf
  # Of integers: the L1 norm is at most the squared L2 norm.
  norm_1 = min(math.sqrt(lattice.num_integers) * norm, norm**2)
  return order * norm**2 / (2 * variance) + min(
      ((2 * order - 1) * norm**2 + 6 * norm_1) / (4 * variance**2),
      3 * norm_1 / (2 * variance),
  )


def _sum_excess(share_variance: float, num_shares: int) -> float:
  """Returns how far a sum of discrete Gaussians is from a discrete Gaussian (tau of the source)."""
  return 10 * sum(
      math.exp(-2 * math.pi**2 * share_variance * i / (i + 1))
      for i in range(1, num_shares)
  )


def _log_binomial(n, k):
  return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
