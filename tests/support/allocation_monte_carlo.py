"""An independent estimate of delta of random allocation, by sampling of its dominating pair.

It shares no code with the accountant: no grid, no convolution, no PLD_accounting.
"""

from typing import NamedTuple

import numpy as np
from scipy import special

_CHUNK = 2_000_000  # Numbers drawn at a time.


class Estimate(NamedTuple):
  """An estimate of delta, and its standard error."""

  delta: float
  error: float


def deltas(
    epsilon: float, sigma: float, rounds_per_block: int, blocks: int, samples: int = 10**6,
    seed: int = 0,
) -> tuple[Estimate, Estimate]:
  """Returns delta at epsilon for a removed client, and for an added one.

  P is the uniform mixture over i of N(e_i, sigma^2 I_B), Q is N(0, sigma^2 I_B), both composed over
  blocks. With L = log(P / Q) these are the means of max(0, 1 - exp(epsilon - L)) under P, and of
  max(0, 1 - exp(epsilon + L)) under Q.
  """
  rng = np.random.default_rng(seed)
  totals, left = np.zeros((2, 2)), samples
  while left:
    num = min(left, max(1, _CHUNK // (rounds_per_block * blocks)))
    noise = rng.normal(0, sigma, (num, blocks, rounds_per_block))
    loss_q = _log_ratio(noise, sigma)
    noise[:, :, 0] += 1  # The pair is symmetric in i, so that the client's round may be round 0.
    loss_p = _log_ratio(noise, sigma)
    for total, loss in zip(totals, (loss_p, -loss_q)):
      values = -np.expm1(np.minimum(epsilon - loss, 0))
      total += values.sum(), (values**2).sum()
    left -= num
  means = totals / samples
  return tuple(
      Estimate(mean, float(np.sqrt(max(square - mean**2, 0) / samples))) for mean, square in means
  )


def _log_ratio(x: np.ndarray, sigma: float) -> np.ndarray:
  """Returns log(P / Q), summed over blocks."""
  ratios = special.logsumexp((x - 0.5) / sigma**2, axis=-1) - np.log(x.shape[-1])
  return ratios.sum(axis=-1)
