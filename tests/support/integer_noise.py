"""Probabilities of discrete Gaussian noise in floating point, to compare tables and draws with."""

import numpy as np


def probabilities(variance, x):
  """Those of the integers `x`, which are nearly all."""
  weights = np.exp(-(x**2) / (2 * variance))
  return weights / weights.sum()
