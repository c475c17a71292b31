"""Epsilon by privacy loss distributions (PLD), composed numerically over the rounds.

Tighter than Renyi DP: the distribution of the privacy loss of one round is put on a
grid, rounded up (down for a lower bound) and convolved with itself. The grid and the
composition are dp-accounting's (Koskela, Jaelkoe, Honkela 2020; Doroshenko et al. 2022,
"Connect the Dots"). What belongs here is which pair of distributions a round is.

With noise C sigma on the sum, in units of C sigma:

* Poisson sampling, one client added or removed: N(0, 1) against
  (1 - q) N(0, 1) + q N(1 / sigma, 1), in both directions, which dominates (Zhu, Dong,
  Wang 2022, Theorem 11).
* Exactly r of n clients, one replaced. Couple the samples (Balle, Barthe, Gaboardi
  2018): with probability 1 - q = 1 - r / n the sum is of clients that did not change;
  else one of these is exchanged for the client in question, as it was or as it is
  instead, which moves the sum by up to 2 C either way. By joint convexity of the hockey-
  stick divergence a round is dominated by (1 - q) N(0, 1) + q N(+2 / sigma, 1) against
  (1 - q) N(0, 1) + q N(-2 / sigma, 1): the upper bound.
* The lower bound is a pair of populations: one client that sends +C in a population and
  -C in its neighbour, all others -C. Its rounds are N(0, 1) against
  (1 - q) N(0, 1) + q N(2 / sigma, 1), so no accountant may say less.
"""

import functools

import dp_accounting
from dp_accounting.pld import privacy_loss_distribution as pld

_ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
_REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
# Rounding to the grid moves a round's loss by at most its step; for the upper bounds
# Connect the Dots makes the error far smaller, for the lower one it adds up.
_STEP, _FINE_STEP = 1e-4, 5e-5
# With little noise losses are large, and so may steps be.
_MAX_STEPS = 200_000


def poisson(
    noise_multiplier: float, sampling_rate: float, rounds: int, delta: float
) -> float:
  """Epsilon under Poisson sampling, one client added or removed.

  Args:
    noise_multiplier: sigma, positive.
    sampling_rate: q, in (0, 1].
    rounds: At least 1.
    delta: In (0, 1).

  Returns:
    An upper bound of epsilon, infinite if the numbers allow for no other.
  """
  return _epsilon(
      _round(noise_multiplier, sampling_rate, _ADD_OR_REMOVE, True), rounds, delta
  )


def fixed_size(
    noise_multiplier: float, sampling_rate: float, rounds: int, delta: float
) -> float:
  """Epsilon for exactly r of n clients, one replaced: an upper bound.

  Args:
    noise_multiplier: See `poisson`.
    sampling_rate: r / n.
    rounds: See `poisson`.
    delta: See `poisson`.

  Returns:
    See `poisson`.
  """
  # Where all take part nobody is exchanged, and the sum moves by 2 C at most.
  relation = _REPLACE if sampling_rate < 1 else _ADD_OR_REMOVE
  return _epsilon(
      _round(noise_multiplier / 2, sampling_rate, relation, True), rounds, delta
  )


def fixed_size_lower(
    noise_multiplier: float, sampling_rate: float, rounds: int, delta: float
) -> float:
  """As `fixed_size`, but a lower bound: two populations are that far apart."""
  return _epsilon(
      _round(noise_multiplier / 2, sampling_rate, _ADD_OR_REMOVE, False),
      rounds,
      delta,
  )


@functools.lru_cache(maxsize=16)
def _round(
    standard_deviation: float,
    sampling_rate: float,
    relation: dp_accounting.NeighboringRelation,
    pessimistic: bool,
) -> pld.PrivacyLossDistribution:
  largest_loss = 1 / (2 * standard_deviation**2) + 10 / standard_deviation
  step = max(_STEP if pessimistic else _FINE_STEP, largest_loss / _MAX_STEPS)
  return pld.from_gaussian_mechanism(
      standard_deviation,
      pessimistic_estimate=pessimistic,
      value_discretization_interval=step,
      sampling_prob=sampling_rate,
      use_connect_dots=pessimistic,
      neighboring_relation=relation,
  )


def _epsilon(
    one: pld.PrivacyLossDistribution, rounds: int, delta: float
) -> float:
  return float(one.self_compose(rounds).get_epsilon_for_delta(delta))
