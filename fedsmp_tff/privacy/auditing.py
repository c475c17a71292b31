"""Lower confidence bounds on epsilon from canaries' scores.

An accountant bounds the leakage of a correct implementation from above; an audit bounds the leakage
of this implementation from below. A bound above the reported epsilon refutes it. A bound below it
proves nothing: canaries are one attack, and the confidence is 95 % by default.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import sampling as sampling_lib
from fedsmp_tff.privacy import spec as spec_lib

_PILOT = 0.2
# Error probability of each check of a run's noise and sampling, as a fraction of the audit's own.
_CHECK = 0.05


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
    confidence: Probability that the bound holds.

  Returns:
    The lower bound on epsilon, at least 0, and the attack.
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


class RunRecord(NamedTuple):
  """What the auditor of a run knows; sums are in units of the round's C.

  Attributes:
    scores: float[num], for each coin the released sum at its canary's coordinate, without what
      other clients add.
    coins: bool[num], whether the canary was inserted; fair and independent of all else.
    values: float[rounds, values], each round's released sum, without what other clients add.
    cohorts: bool[rounds, n], which clients were sampled.
  """

  scores: np.ndarray
  coins: np.ndarray
  values: np.ndarray
  cohorts: np.ndarray


class RunAudit(NamedTuple):
  """The result of an audit of a run.

  Attributes:
    epsilon: The accountant's epsilon of the run with the most noise that the coins allow.
    right: Number of coins that the auditor guessed right.
    shared_noise: p-value of the two rounds whose noise is most alike.
    shared_clients: p-value of the sizes and overlaps of the cohorts.
    refutations: What differs from the specification, in words; empty if nothing does.
  """

  epsilon: float
  right: int
  shared_noise: float
  shared_clients: float
  refutations: tuple[str, ...]


def audit_run(
    record: RunRecord, spec: spec_lib.PrivacySpec, noise_stddev: float, confidence: float = 0.95
) -> RunAudit:
  """Bounds the noise of one run by coins that its releases betray, and checks noise and sampling.

  A right run is refuted with a probability of at most 1 - confidence: nine tenths of that for the
  bound, a twentieth for each of the two checks.

  Args:
    record: The run.
    spec: What the run reports.
    noise_stddev: Standard deviation of the noise in each of `record.values`, as reported.
    confidence: Probability that a right run is not refuted.
  """
  tail = 1 - confidence
  epsilon, right = epsilon_of_coins(
      record.scores, record.coins, spec, 1 - (1 - 2 * _CHECK) * tail
  )
  shared_noise = shared_noise_p_value(record.values, noise_stddev)
  shared_clients = shared_clients_p_value(record.cohorts, spec)
  found = (
      (epsilon > spec.epsilon(), 'the coins allow less noise than reported'),
      (shared_noise < _CHECK * tail, 'two releases differ by less than the reported noise'),
      (shared_clients < _CHECK * tail, 'cohorts are larger or more alike than reported'),
  )
  refutations = tuple(text for is_found, text in found if is_found)
  return RunAudit(epsilon, right, shared_noise, shared_clients, refutations)


def epsilon_of_coins(
    scores: np.ndarray, coins: np.ndarray, spec: spec_lib.PrivacySpec, confidence: float
) -> tuple[float, int]:
  """Bounds the noise of a run by guessing each coin from its score; returns epsilon at the bound.

  A canary adds C to the sum at a coordinate that no other canary of its round has. With Gaussian
  noise a score is thus N(coin, sigma^2), independent of the others, and the guess `score > 1/2` is
  right with probability Phi(1 / (2 sigma)). What other clients add, if it does not depend on the
  coin, only lowers that. So the number of right guesses is binomial: its Clopper-Pearson bound
  gives the largest sigma that explains them, and the accountant gives epsilon of a run with that
  sigma and the sampling and rounds of `spec`.

  So this tests a report: one whose epsilon is below the bound has less noise than it says. It is no
  lower bound on epsilon by itself. The accountant rounds up, and counts the whole of a block of an
  allocation; and noise that is not Gaussian, of the same number of right guesses, may have a
  smaller epsilon.

  Coins of all rounds together make one run enough (Steinke, Nasr, Jagielski 2023). Their bound, and
  the one for f-DP (Mahloujifar, Melis, Chaudhuri 2024), allow for guesses that depend on each other
  in any way, which noise of independent coordinates excludes (white-box Gaussian sums as in arXiv
  2606.12733, without its limit of many rounds). From 600 coins at sigma = 0.57 they prove a sigma
  of at most 0.97, this bound 0.64.

  >>> spec = spec_lib.PrivacySpec(6000, 300, 40, 0.566, 1.0, delta=7e-5)
  >>> rng = np.random.default_rng(0)
  >>> coins = rng.random(600) < 0.5
  >>> scores = coins + rng.normal(0, spec.noise_multiplier, 600)
  >>> bound, right = epsilon_of_coins(scores, coins, spec, confidence=0.95)
  >>> 5 < bound < spec.epsilon() < 8.1
  True

  Args:
    scores: See `RunRecord`.
    coins: See `RunRecord`.
    spec: Sampling, rounds and delta of the run.
    confidence: Probability that the bound on sigma holds, if the noise is Gaussian.

  Returns:
    Epsilon at the bound on sigma, at least 0, and the number of right guesses.
  """
  right = int(np.count_nonzero((scores > 0.5) == coins))
  rate = stats.beta.ppf(1 - confidence, right, len(coins) - right + 1) if right else 0.0
  if rate <= 0.5:
    return 0.0, right
  sigma = 1 / (2 * stats.norm.ppf(rate))
  gaussian = mechanism_lib.Gaussian()
  return dataclasses.replace(spec, noise_multiplier=sigma, noise=gaussian).epsilon(), right


def shared_noise_p_value(values: np.ndarray, noise_stddev: float) -> float:
  """Returns the p-value of the two rounds whose releases differ least, for all pairs together.

  The difference of two releases has the noise of both, of variance 2 noise_stddev^2, plus what
  clients add. Its squared norm is thus at least as large, in distribution, as a chi-squared one
  with a degree of freedom per value. Noise that two rounds share makes it smaller.

  Args:
    values: See `RunRecord`.
    noise_stddev: The noise that is reported.
  """
  rounds, num = values.shape
  least = min((np.sum((values[i + 1 :] - values[i]) ** 2, 1).min() for i in range(rounds - 1)),
              default=math.inf)
  p_value = stats.chi2.cdf(least / (2 * noise_stddev**2), num)
  return float(min(1.0, math.comb(rounds, 2) * p_value)) if rounds > 1 else 1.0


def shared_clients_p_value(cohorts: np.ndarray, spec: spec_lib.PrivacySpec) -> float:
  """Returns the p-value of the size of all cohorts, and of the two that share most clients.

  Args:
    cohorts: See `RunRecord`.
    spec: The sampling that is reported. Its limit of slots makes cohorts and overlaps smaller.
  """
  rounds, n = cohorts.shape
  r, rate = spec.clients_per_round, spec.round.sampling_rate
  overlaps = np.triu(cohorts.astype(np.float32) @ cohorts.T.astype(np.float32), 1)
  if spec.sampling == sampling_lib.ALLOCATION:
    blocks = np.arange(rounds) // spec.round.rounds_per_block
    # Two rounds of a block share no client, so that no block has more than n.
    if overlaps[blocks[:, np.newaxis] == blocks].any():
      return 0.0
    larger = 1.0
  else:
    larger = stats.binom(n * rounds, rate).sf(np.count_nonzero(cohorts) - 1)
  # Of two rounds' r clients, or of each client's coins in two rounds.
  is_fixed = spec.sampling == sampling_lib.FIXED
  overlap = stats.hypergeom(n, r, r) if is_fixed else stats.binom(n, rate**2)
  p_value = min(larger, overlap.sf(overlaps.max() - 1))
  return float(min(1.0, (1 + math.comb(rounds, 2)) * p_value))
