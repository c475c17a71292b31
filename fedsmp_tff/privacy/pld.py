"""Epsilon by privacy loss distributions (PLD), composed numerically over the rounds.

Tighter than Renyi DP: the distribution of the privacy loss of one round is put on a
grid, rounded up (down for a lower bound) and convolved with itself. The grid and the
composition are dp-accounting's (Koskela, Jaelkoe, Honkela 2020; Doroshenko et al. 2022,
"Connect the Dots"). What belongs here is which pair of distributions a round is.

With noise C sigma on the sum, in units of C sigma:

* Poisson sampling, one client added or removed: N(0, 1) against
  (1 - q) N(0, 1) + q N(1 / sigma, 1), in both directions, which dominates (Zhu, Dong,
  Wang 2022, Theorem 11). Where more clients may be sampled than there are seats, the
  mixture of that with a replaced client (arXiv 2508.15089), by dp-accounting.
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

from collections.abc import Sequence
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
_ROUNDS_KEPT = 16

# The distribution of a round, on a grid as fine as its noise needs or coarser.
Loss = pld.PrivacyLossDistribution


def step_of(noise_multiplier: float, lower: bool = False) -> float:
  """The grid's step for a round with noise multiplier sigma (sigma / 2 for a replaced client)."""
  largest_loss = 1 / (2 * noise_multiplier**2) + 10 / noise_multiplier
  return max(_FINE_STEP if lower else _STEP, largest_loss / _MAX_STEPS)


@functools.lru_cache(maxsize=_ROUNDS_KEPT)
def poisson(
    noise_multiplier: float, population: int, clients_per_round: int, seats: int,
    step: float,
) -> Loss:
  """A round with Poisson sampling, one client added or removed: an upper bound.

  Args:
    noise_multiplier: sigma, positive.
    population: n.
    clients_per_round: r; clients are sampled with probability r / n.
    seats: The most of them that take part.
    step: Of the grid; see `step_of`.
  """
  return pld.from_truncated_subsampled_gaussian_mechanism(
      population,
      clients_per_round / population,
      seats,
      noise_multiplier,
      value_discretization_interval=step,
  )


@functools.lru_cache(maxsize=_ROUNDS_KEPT)
def fixed(
    noise_multiplier: float, population: int, clients_per_round: int, step: float
) -> Loss:
  """A round with exactly r of n clients, one replaced: an upper bound.

  Args:
    noise_multiplier: sigma, positive.
    population: n.
    clients_per_round: r.
    step: Of the grid; see `step_of`.
  """
  # Where all take part nobody is exchanged, and the sum moves by 2 C at most.
  relation = _REPLACE if clients_per_round < population else _ADD_OR_REMOVE
  return _gaussian(
      noise_multiplier / 2, clients_per_round / population, relation, True, step
  )


@functools.lru_cache(maxsize=_ROUNDS_KEPT)
def fixed_lower(
    noise_multiplier: float, population: int, clients_per_round: int, step: float
) -> Loss:
  """As `fixed`, but a lower bound: two populations are that far apart."""
  return _gaussian(
      noise_multiplier / 2, clients_per_round / population, _ADD_OR_REMOVE, False, step
  )


def epsilon(rounds: Sequence[tuple[Loss, int]], delta: float) -> float:
  """Of rounds of one grid and adjacency, each as many times as its number says.

  Args:
    rounds: At least one, each at least once.
    delta: In (0, 1).

  Returns:
    epsilon, infinite if the numbers allow for no other.
  """
  composed = functools.reduce(
      lambda a, b: a.compose(b), [one.self_compose(num) for one, num in rounds]
  )
  return float(composed.get_epsilon_for_delta(delta))


def deltas(one: Loss, num: int, epsilons: Sequence[float]) -> list[float]:
  """delta at each epsilon, at least 0, of a round that takes place `num` times."""
  return one.self_compose(num).get_delta_for_epsilon(epsilons)


def _gaussian(
    standard_deviation: float,
    sampling_rate: float,
    relation: dp_accounting.NeighboringRelation,
    pessimistic: bool,
    step: float,
) -> Loss:
  return pld.from_gaussian_mechanism(
      standard_deviation,
      pessimistic_estimate=pessimistic,
      value_discretization_interval=step,
      sampling_prob=sampling_rate,
      use_connect_dots=pessimistic,
      neighboring_relation=relation,
  )
