"""Epsilon by privacy loss distributions (PLD), composed numerically over the rounds.

Tighter than Rényi DP: the distribution of the privacy loss of one round is put on a grid, rounded
up and convolved with itself. All of this is dp-accounting's (Koskela, Jälkö, Honkela 2020;
Doroshenko et al. 2022, "Connect the Dots"). This module names the pair of distributions that stands
for a round, chooses the step of the grid, charges delta for rounding, and has the closed form for
rounds without sampling.

With noise C sigma on the sum, in units of C sigma:

* Poisson sampling, one client added or removed: N(0, 1) against
  (1 - q) N(0, 1) + q N(1 / sigma, 1), in both directions, which dominates (Zhu, Dong, Wang 2022,
  Theorem 11). Where more clients may be sampled than there are slots, the mixture of that pair with
  a replaced client (arXiv 2508.15089).
* Random allocation, one client added or removed: a block of B rounds, in one of which the client
  takes part, is dominated in both directions by N(0, I_B) against the uniform mixture of
  N(e_i / sigma, I_B) over i, also if each round depends on the releases before it (Feldman and
  Shenfeld, arXiv 2502.08202 and 2602.17284). Given earlier releases, the client moves round i, if
  it takes part, by a vector of length up to C; with length C, its product with the noise has the
  law N(0, 1) without the client, whatever its direction, so that all likelihood ratios have the
  joint law of that pair; a shorter one is the same with more noise. The rounds of other clients are
  independent of this one's, and so part of "given". The loss is PLD_accounting's, by the theorem's
  author, which rounds it up.
* Exactly r of n clients, one replaced. Couple the samples (Balle, Barthe, Gaboardi 2018): with
  probability 1 - q = 1 - r / n the sum is of clients that did not change; else the client in
  question, before or after the change, takes the place of one of them, which moves the sum by up to
  2 C either way. By joint convexity of the hockey-stick divergence a round is dominated by
  (1 - q) N(0, 1) + q N(+2 / sigma, 1) against (1 - q) N(0, 1) + q N(-2 / sigma, 1).

Rounding in FFTs may make a composed delta too small. It is charged to delta, so that epsilon stays
an upper bound for tiny deltas and many rounds.
"""

from collections.abc import Callable, Sequence
import functools
import math

import dp_accounting
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import privacy_loss_distribution as pld
import numpy as np
import PLD_accounting as allocation_accounting

from fedsmp_tff.privacy import divergences

# Connect the Dots keeps a loss's mean and adds at most the square of half a step to its variance:
# less than a tenth of a percent with steps of a twentieth of the standard deviation.
_STEPS_PER_STDDEV = 20
_MAX_STEP = 1e-3  # A larger one adds up to 0.04 % to the epsilon of a few rounds with much noise.
_MAX_STEPS = 200_000  # Bounds the grid with little noise, where losses are large.
# Bounds the grid of the composed loss, and so memory and time. After a million rounds its width is
# at most 100,000 standard deviations of one round's loss, since dp-accounting bounds it by few
# orders. So the step is a tenth of one; in ten million rounds it may be a whole one.
_MAX_COMPOSED_STEPS = 1_000_000
_LOG_TAIL = -math.log(1e-15 / 2)  # Each tail's mass that dp-accounting cuts off the composed loss.
_MAX_ORDER = 20  # Of dp-accounting's Chernoff bounds of the composed loss, over the largest loss.
MAX_USEFUL_STEP = 10.0  # Larger steps, with hardly any noise, say less than `unsampled`.
_TOLERANCE = 1e-15  # Of the closed form's epsilon.
_MAX_CACHED = 16
# Points of the grid of one round's loss in a block. It sets time, as its square, and accuracy:
# every one of up to 2 log2(B) sums of a block rounds losses up by half a step on average.
_BLOCK_POINTS, _BLOCK_STDDEVS = 6000, 15
# With less noise, likelihood ratios are too large for floats. A block then counts as one round with
# the client, whose round is known, which bounds it as in `unsampled`.
_MIN_BLOCK_NOISE = 0.06
_BLOCK_TAIL = 1e-12  # Probability that a block charges to delta for tails that are cut off.
# Charge to delta per round for rounding in FFTs. Compared with long doubles, rounding reduced delta
# by at most 0.95 times the charge in 2,600 random settings (rates from 1e-4 to 1, up to 10^6
# rounds), most with nearly all probability at one loss, so that no frequency vanishes.
_ROUNDING = 1.25 * np.finfo(float).eps
# Rounding of deltas moves up to `_ROUNDING` / step of a round's mass at each point of the grid. With
# steps of this many times `_ROUNDING` per round, it is at most a percent in all rounds.
_MIN_STEP = 80

Loss = pld.PrivacyLossDistribution  # The privacy loss of a round, on a grid.
_Relation = dp_accounting.NeighboringRelation


def grid_step(rounds: Sequence[tuple[float, float, float]]) -> float:
  """Returns the step of the common grid of the losses of all rounds.

  Any step gives an upper bound. This one is fine enough to be tight, as far as memory and rounding
  permit.

  Args:
    rounds: Tuples of a positive noise multiplier, relative to the sensitivity (sigma; sigma / 2
      for a replaced client), a sampling rate, and an (expected) number of rounds, positive.
  """
  num_rounds = sum(num for *_, num in rounds)
  variance = sum(num * _loss_variance(sigma, rate) for sigma, rate, num in rounds)
  stddev = math.sqrt(variance / num_rounds)
  largest = max(_loss_at(10, sigma, rate) for sigma, rate, _ in rounds)
  # With little noise, the variance is mostly between rounds with and without the client.
  variance += sum(
      num * rate * (1 - rate) * _loss_at(1, sigma, rate) ** 2 for sigma, rate, num in rounds
  )
  return max(
      min(_MAX_STEP, stddev / _STEPS_PER_STDDEV),
      largest / _MAX_STEPS,
      _composed_width(variance, largest) / _MAX_COMPOSED_STEPS,
      _MIN_STEP * _ROUNDING * num_rounds,
  )


def _composed_width(variance: float, largest: float) -> float:
  """Returns the approximate distance of dp-accounting's Chernoff bounds of the composed loss."""
  order = math.sqrt(2 * _LOG_TAIL / variance)
  order = min(max(order, 1 / largest), _MAX_ORDER / largest)
  return variance * order + 2 * _LOG_TAIL / order


def _loss_variance(noise_multiplier: float, sampling_rate: float) -> float:
  """Returns the approximate variance of a round's loss: log(1 + chi-squared divergence)."""
  exponent = 1 / noise_multiplier**2
  return float(np.logaddexp(0, 2 * math.log(sampling_rate) + exponent + _log1mexp(exponent)))


def _loss_at(stddevs: float, noise_multiplier: float, sampling_rate: float) -> float:
  """Returns the loss of a round with the client, at a number of standard deviations of noise."""
  unsampled = 1 / (2 * noise_multiplier**2) + stddevs / noise_multiplier
  return float(np.logaddexp(0, math.log(sampling_rate) + unsampled + _log1mexp(unsampled)))


def _log1mexp(x: float) -> float:
  """Returns log(1 - exp(-x))."""
  return math.log(-math.expm1(-x))


@functools.lru_cache(_MAX_CACHED)
def poisson(
    noise_multiplier: float, population: int, clients_per_round: int, num_slots: int, step: float
) -> Loss:
  """Returns an upper bound of the loss of a Poisson-sampled round, one client added or removed.

  Args:
    noise_multiplier: sigma, positive.
    population: n.
    clients_per_round: r; clients are sampled with probability r / n.
    num_slots: Maximum number of clients that take part.
    step: Step of the grid; see `grid_step`.
  """
  return _to_dense(pld.from_truncated_subsampled_gaussian_mechanism(
      population, clients_per_round / population, num_slots, noise_multiplier, step
  ))


def truncation(population: int, clients_per_round: int, num_slots: int) -> tuple[float, float]:
  """Returns the probability that the other clients fill the slots; then, that one takes part."""
  rate = clients_per_round / population
  full = divergences.probability_of_more(num_slots - 1, population - 1, rate)
  if not full:
    return 0.0, 0.0
  overflow = divergences.probability_of_more(num_slots, population, rate)
  return full, overflow * num_slots / full / population


@functools.lru_cache(_MAX_CACHED)
def fixed(noise_multiplier: float, population: int, clients_per_round: int, step: float) -> Loss:
  """Returns an upper bound of the loss of a round of exactly r of n clients, one replaced."""
  # If all clients take part, only the client in question changes, which moves the sum by up to 2 C.
  is_sampled = clients_per_round < population
  return _to_dense(pld.from_gaussian_mechanism(
      noise_multiplier / 2,
      value_discretization_interval=step,
      sampling_prob=clients_per_round / population,
      neighboring_relation=_Relation.REPLACE_ONE if is_sampled else _Relation.ADD_OR_REMOVE_ONE,
  ))


def allocation(noise_multiplier: float, rounds_per_block: int, step: float) -> Loss:
  """Returns an upper bound of the loss of a block of an allocation, one client added or removed.

  Args:
    noise_multiplier: sigma, positive.
    rounds_per_block: B; a client takes part in one of B rounds.
    step: Step of the grid; see `grid_step`.
  """
  if noise_multiplier < _MIN_BLOCK_NOISE:
    return poisson(noise_multiplier, 1, 1, 1, step)
  losses = [
      allocation_accounting.rediscretize_dist_by_bound(
          dist=dist, tail_truncation=0.0, loss_discretization=step,
          bound_type=allocation_accounting.BoundType.DOMINATES,
      )
      for dist in _block(noise_multiplier, rounds_per_block)
  ]
  return allocation_accounting.compose_full_pld(
      remove_dist=losses[0], add_dist=losses[1],
      bound_type=allocation_accounting.BoundType.DOMINATES,
  )


@functools.lru_cache(_MAX_CACHED)
def _block(
    noise_multiplier: float, rounds_per_block: int
) -> list[allocation_accounting.DenseDiscreteDist]:
  """Returns upper bounds of a block's loss, for a removed and for an added client."""
  params = allocation_accounting.PrivacyParams(sigma=noise_multiplier, num_steps=rounds_per_block)
  # PLD_accounting divides the step that it is given by about this number of sums.
  num_sums = 2 * math.log2(rounds_per_block) + 1
  config = allocation_accounting.AllocationSchemeConfig(
      loss_discretization=num_sums * _BLOCK_STDDEVS / noise_multiplier / _BLOCK_POINTS,
      tail_truncation=_BLOCK_TAIL,
  )
  return [
      allocation_accounting.gaussian_allocation_directional_pld(
          params=params, config=config, direction=direction
      )
      for direction in (
          allocation_accounting.Direction.REMOVE, allocation_accounting.Direction.ADD
      )
  ]


def _to_dense(loss: Loss) -> Loss:
  """Returns a loss as arrays; as a dictionary, millions of rounds take minutes to compose."""
  # pylint: disable=protected-access
  pmfs = [loss._pmf_remove, *([] if loss._symmetric else [loss._pmf_add])]
  return Loss(*(pmf.to_dense_pmf() for pmf in pmfs))


def composed_epsilon_fn(rounds: Sequence[tuple[Loss, int]]) -> Callable[[float], float]:
  """Returns the function from delta in (0, 1) to epsilon of composed rounds.

  Args:
    rounds: Losses on one grid, of one relation, each with a number of rounds, at least one.

  Returns:
    The function; epsilon is infinite for delta within the charge for rounding.
  """
  loss = functools.reduce(
      lambda a, b: a.compose(b), [loss.self_compose(num) for loss, num in rounds]
  )
  rounding = _ROUNDING * sum(num for _, num in rounds)

  def epsilon_at(delta):
    epsilon = loss.get_epsilon_for_delta(delta - rounding) if delta > rounding else math.inf
    # Not a number if rounding added more mass to each of many rounds than a float can hold.
    return math.inf if math.isnan(epsilon) else epsilon

  return epsilon_at


def unsampled(rounds: Sequence[tuple[float, int]]) -> Callable[[float], float]:
  """Returns the function from delta to epsilon of rounds in which all clients take part.

  They are one Gaussian mechanism, whose epsilon is exact (Balle and Wang 2018). It is an upper
  bound for every sampling of these clients. Given who else is sampled, a client moves the sum by at
  most its sensitivity, or not at all, and the hockey-stick divergence is jointly convex, so that
  the two Gaussians at that distance dominate every round, and composed they dominate all rounds.

  Args:
    rounds: Pairs of a positive noise multiplier, relative to the sensitivity, and a number of
      rounds, at least one.
  """
  mu = math.hypot(*(math.sqrt(num) / sigma for sigma, num in rounds))

  def epsilon_at(delta):
    epsilon = float(gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta, _TOLERANCE))
    return epsilon and epsilon + _TOLERANCE

  return epsilon_at
