"""Probabilities of integer noise in floating point, to compare tables and draws with."""

import numpy as np
from scipy import special


def probabilities(kind, variance, x):
  """Those of the integers `x`, which are nearly all."""
  if kind == 'skellam':
    return special.ive(np.abs(x), variance)
  weights = np.exp(-(x**2) / (2 * variance))
  return weights / weights.sum()
