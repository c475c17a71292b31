"""Lower confidence bounds on epsilon from canaries' scores.

An accountant bounds the leakage of a correct implementation from above; an audit bounds that of
this implementation from below. A bound above the reported epsilon refutes it. A bound below it
proves nothing: canaries are one attack, and bounds are of 95 % confidence by default.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedsmp_tff.mechanism import mechanism
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import spec as spec_lib

_PILOT = 0.2
# Fractions of canaries on which the auditor guesses.
_GUESSED = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# Range and precision of the search for sigma, relative to the sigma of the specification.
_LEAST_NOISE, _MOST_NOISE, _PRECISION = 4.0, 64.0, 1.01
_LARGEST_EPSILON = 60.0


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
    absent: Scores of releases without it, of the same shape.
    delta: delta of the guarantee, in [0, 1).
    confidence: Probability that epsilon is at least the bound.

  Returns:
    The bound, at least 0.
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
      f'{len(present):,} releases with a canary and {len(absent):,} without; {name} from'
      f' {attack[1]:.3g} on; Clopper-Pearson',
  )


def epsilon_of_one_run(
    scores: np.ndarray, included: np.ndarray, spec: spec_lib.PrivacySpec, confidence: float = 0.95
) -> Audit:
  """Bounds epsilon by one run with many canaries, each included by an independent fair coin.

  Auditing f-DP in one run (Mahloujifar, Melis, Chaudhuri, arXiv 2410.22235): the auditor guesses
  that the canaries with the highest scores are in, and that those with the lowest are out. A sigma
  is refuted if the trade-off function of `spec` with that sigma gives as many right guesses with a
  probability of at most 1 - confidence. The bound is the epsilon of the largest sigma that is not
  refuted.

  Args:
    scores: Scores of the canaries, float[num].
    included: Whether each canary was in the run, bool[num].
    spec: The specification of the run; its trade-off function is that of Gaussian noise.
    confidence: Probability that epsilon is at least the bound.

  Returns:
    The bound, at least 0.
  """
  order = np.argsort(-scores, kind='stable')
  num = len(scores)
  significance = (1 - confidence) / len(_GUESSED)
  guesses = []
  for fraction in _GUESSED:
    half = max(1, round(fraction * num / 2))
    right = np.sum(included[order[:half]]) + np.sum(~included[order[-half:]])
    guesses.append((2 * half, int(right)))
  spec = dataclasses.replace(spec, noise=mechanism.GAUSSIAN)

  def refuted(sigma):
    inverse = _inverse_of_trade_off(spec.with_noise_multiplier(sigma))
    return any(_refuted(inverse, num, *g, significance) for g in guesses)

  counts = ', '.join(f'{right:,} of {total:,}' for total, right in guesses)
  method = f'{num:,} canaries, right guesses {counts}; f-DP in one run'
  high = spec.noise_multiplier * _MOST_NOISE
  if not refuted(high):
    return Audit(0.0, method)
  low = spec.noise_multiplier / _LEAST_NOISE
  while high / low > _PRECISION:
    middle = math.sqrt(low * high)
    low, high = (low, middle) if refuted(middle) else (middle, high)
  method += f'; sigma = {high:.3g} and more are refuted'
  return Audit(spec.with_noise_multiplier(high).epsilon(), method)


def _inverse_of_trade_off(spec: spec_lib.PrivacySpec) -> Callable[[float], float]:
  """Returns a function from a true positive rate to its least possible false positive rate.

  At every epsilon, true <= e^epsilon false + delta(epsilon), and likewise for the complements.
  """
  epsilons = np.concatenate([[0.0], np.geomspace(1e-3, _LARGEST_EPSILON, 300)])
  deltas = accountants.deltas(spec.round, spec.rounds, epsilons)
  inverse_exp = np.exp(-epsilons)

  def inverse(true):
    least = np.max((true - deltas) * inverse_exp)
    # 1 - false <= e^epsilon (1 - true) + delta.
    least_by_complements = np.max(1 - np.exp(epsilons) * (1 - true) - deltas)
    return max(0.0, least, least_by_complements)

  return inverse


def _refuted(
    inverse: Callable[[float], float], num: int, guesses: int, right: int, significance: float
) -> bool:
  """Whether `right` right guesses refute a trade-off function (algorithm 3 of the source).

  `hit` and `wrong` bound, per canary, the probabilities of a right and a wrong guess together with
  at least i right guesses; they go from i = `right` down to 0, where they must add up to all.
  """
  hit = significance * right / num
  wrong = significance * (guesses - right) / num
  for i in range(right - 1, -1, -1):
    more_wrong = max(wrong, inverse(hit))
    if more_wrong == wrong:
      break
    hit = min(1.0, hit + i / (guesses - i) * (more_wrong - wrong))
    wrong = more_wrong
  return hit + wrong > guesses / num
