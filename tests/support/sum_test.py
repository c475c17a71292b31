"""A lower bound of epsilon: one threshold on the sum of all rounds tells two populations apart."""

import math

import numpy as np
from scipy import stats

_SMALL = 1e-3
_TAIL = 40  # Numbers of rounds beyond nine standard deviations that are looked at.


def epsilon(sigma, rate, rounds, delta, replaced=False):
  """An epsilon that every sound accountant must reach.

  All other clients send zero, and the client in question sends C in the rounds that sample it, or
  -C before it was replaced. So the sum of all rounds, over its standard deviation, is normal around
  K h, where K is binomial and h = 1 / (sigma sqrt(T)), or around 0 (replaced: -K h). For any
  threshold t, delta(epsilon) >= P[sum > t] - e^epsilon Q[sum > t].

  Differences of normal tails are computed from the density, without cancellation.
  """
  h = 1 / (sigma * math.sqrt(rounds))
  width = 9 * math.sqrt(rounds * rate * (1 - rate))
  low, high = max(0, int(rounds * rate - width - 5)), int(rounds * rate + width + _TAIL)
  k = np.arange(low, min(rounds, high) + 1)
  prob, shift = stats.binom.pmf(k, rounds, rate), (2 if replaced else 1) * h * k
  best = 0.0
  for t in np.linspace(-3, 12, 601):
    start = t + h * k if replaced else np.full(len(k), t)  # Q[sum > t] = E[tail(start)].
    excess = np.where(
        shift < _SMALL, stats.norm.pdf(start - shift / 2) * shift * (1 - _SMALL**2),
        stats.norm.sf(start - shift) - stats.norm.sf(start),
    )
    gain = prob @ excess - delta
    if gain > 0:
      best = max(best, math.log1p(gain / (prob @ stats.norm.sf(start))))
  return best
