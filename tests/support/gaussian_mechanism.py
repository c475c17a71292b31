"""The Gaussian mechanism in closed form (Balle and Wang 2018, Theorem 8)."""

import numpy as np
from scipy import optimize
from scipy import special


def log_delta(epsilon, mu):
  """The logarithm of delta at epsilon; mu is the sensitivity over the noise's stddev."""
  above = special.log_ndtr(mu / 2 - epsilon / mu)
  below = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
  return above + np.log(-np.expm1(below - above))


def epsilon(mu, delta):
  """The epsilon at delta, to 1e-12."""
  if log_delta(0.0, mu) <= np.log(delta):
    return 0.0
  # The bound of Renyi DP, with the classic conversion.
  high = mu**2 / 2 + mu * np.sqrt(2 * np.log(1 / delta))
  return optimize.brentq(lambda e: log_delta(e, mu) - np.log(delta), 0.0, high, xtol=1e-12)
