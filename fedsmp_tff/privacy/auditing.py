"""Lower confidence bounds on epsilon from canaries' scores.

An accountant bounds the leakage of a correct implementation from above; an audit bounds the leakage
of this implementation from below. A bound above the reported epsilon refutes it. A bound below it
proves nothing: canaries are one attack, and the confidence is 95 % by default.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

_PILOT = 0.2


class Audit(NamedTuple):
  """The result of an audit.

  Attributes:
    epsilon: The lower bound at delta.
    method: Short description of the attack and the bound.
  """

  epsilon: float
  method: str


def epsilon_of_one_release(
    present: np.ndarray, absent: np.ndarray, delta: float, confidence: float = 0.95
) -> Audit:
  """Bounds epsilon by independent releases with a canary and without.

  The attack is a threshold on a score of the canary. A fifth of the releases choose score and
  threshold; the others give Clopper-Pearson bounds of the attack's true and false positive rates,
  and with (epsilon, delta)-DP true <= e^epsilon false + delta (Jagielski, Ullman, Oprea 2020).

  >>> rng = np.random.default_rng(0)
  >>> present, absent = rng.normal(1, 1, 5000), rng.normal(0, 1, 5000)
  >>> 0.5 < epsilon_of_one_release(present, absent, delta=1e-3).epsilon < 4.4
  True

  Args:
    present: Scores of releases with the canary, float[num] or float[num, scores]; larger scores
      suggest its presence.
    absent: Scores of releases without it, as many per release.
    delta: delta of the guarantee, in [0, 1).
    confidence: Probability that epsilon is at least the bound.

  Returns:
    The bound, at least 0, and the attack.
  """
  present, absent = (s.reshape(len(s), -1) for s in (present, absent))
  pilot, held = zip(*(np.split(s, [int(_PILOT * len(s))]) for s in (present, absent)))
  tail = (1 - confidence) / 2

  def bound(attack, scores):
    column, threshold = attack
    true, false = (np.count_nonzero(s[:, column] >= threshold) for s in scores)
    low = stats.beta.ppf(tail, true, len(scores[0]) - true + 1) if true else 0.0
    rest = len(scores[1]) - false
    high = stats.beta.ppf(1 - tail, false + 1, rest) if rest else 1.0
    return math.log((low - delta) / high) if low > delta else 0.0

  thresholds = np.quantile(np.concatenate(pilot), np.linspace(0.5, 0.9995, 400), axis=0)
  attacks = [(column, t) for column in range(present.shape[1]) for t in thresholds[:, column]]
  attack = max(attacks, key=lambda attack: bound(attack, pilot))
  name = 'score' if present.shape[1] == 1 else f'score {attack[0] + 1}'
  return Audit(
      max(0.0, bound(attack, held)),
      f'{len(present):,} releases with a canary and {len(absent):,} without; {name} >='
      f' {attack[1]:.3g}; Clopper-Pearson',
  )
