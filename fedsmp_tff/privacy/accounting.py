"""Epsilon of runs under every accounting, each with its assumption.

Every round releases a sum over sampled clients of vectors clipped to C, plus noise of
standard deviation C sigma (`FedSmpFactory`); epsilon does not depend on k and d. It depends on
how clients are sampled and on the adjacency, the meaning of 'one client more or less':

  name         sampling            adjacency           sum's sensitivity
  poisson_pld  Poisson, rate r/n   add or remove one   C
  fixed_pld    exactly r of n,     replace one         2 C
               no replacement
  poisson_rdp  Poisson, rate r/n   add or remove one   C
  fixed_rdp    exactly r of n      replace one         2 C
  paper        Poisson, rate r/n   add or remove one   C

`*_pld` are composed privacy loss distributions (`pld` explains which and why), or Renyi DP where
that gives a smaller epsilon: both are upper bounds, so the smaller is one too. `*_rdp` are
Renyi DP with the conversion of Canonne, Kamath, Steinke (2020): for Poisson sampling of Gaussian
noise dp-accounting's, with a fixed number of clients Wang, Balle, Kasiviswanathan (2019),
Theorem 9, at noise multiplier sigma / 2, since replacing a client moves a sum by up to 2 C and
dp-accounting takes the multiplier relative to that. With integer noise all but `paper` account for
the Gaussian noise that dominates (`discrete_gaussian`). `paper` is the paper's own accounting (Renyi DP, conversion of Lemma 2), which reproduces
its tables. The RDP accounting of TensorFlow Privacy lives in dp-accounting since version 0.9, so
`poisson_rdp` is its figure too.
"""

from collections.abc import Callable, Sequence
import functools
import math
from typing import NamedTuple

import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import stats

from fedsmp_tff.privacy import pld
from fedsmp_tff.privacy import sampling

_TENTHS = tuple(1 + x / 10 for x in range(1, 100))
_ORDERS = (*_TENTHS, *range(11, 64), 80, 96, 128, 192, 256, 384, 512, 1024)
# The orders of Opacus 0.x, which the paper used.
_PAPER_ORDERS = (*_TENTHS, *range(12, 64))
_MOST_STEPS_TO_DELTA = 100
# Divergences that are kept: each of a round, at an order.
_DIVERGENCES_KEPT = 2**14
# For many deltas at once; as all upper bounds, they are no less for it.
_COARSE_STEP = 1e-3


class Accounting(NamedTuple):
  """One way to compute epsilon, and its assumptions.

  Attributes:
    title: The method and the sampling, for people.
    assumption: The adjacency and the sensitivity.
    sampling: The sampling that it assumes: `POISSON` or `FIXED`.
  """

  title: str
  assumption: str
  sampling: str


_PLD = 'PLD (RDP if smaller)'
_ONE_MORE = 'add-or-remove-one adjacency, sensitivity C'
_ANOTHER = 'replace-one adjacency, sensitivity 2C'
_BY_POISSON = 'Poisson sampling at rate r/n'
_BY_FIXED = 'exactly r of n clients a round, without replacement'

ACCOUNTINGS = {
    'poisson_pld': Accounting(f'{_PLD}, {_BY_POISSON}', _ONE_MORE, sampling.POISSON),
    'fixed_pld': Accounting(f'{_PLD}, {_BY_FIXED}', _ANOTHER, sampling.FIXED),
    'poisson_rdp': Accounting(f'RDP, {_BY_POISSON}', _ONE_MORE, sampling.POISSON),
    'fixed_rdp': Accounting(f'RDP, {_BY_FIXED}', _ANOTHER, sampling.FIXED),
    'paper': Accounting(
        f"the paper's accounting (RDP, {_BY_POISSON}, classic conversion)", _ONE_MORE,
        sampling.POISSON,
    ),
}


def named(accounting: str) -> Accounting:
  """Returns an accounting.

  Raises:
    ValueError: If there is none of this name.
  """
  if accounting not in ACCOUNTINGS:
    raise ValueError(f'`accounting` must be one of {list(ACCOUNTINGS)}. Found {accounting!r}.')
  return ACCOUNTINGS[accounting]


class Round(NamedTuple):
  """The numbers on which a round's guarantee depends.

  Attributes:
    sampling: `sampling.POISSON` or `sampling.FIXED`.
    population: n, the most clients that either neighbouring population has.
    clients_per_round: r.
    seats: The most clients that take part.
    noise_multiplier: sigma, of noise in reals or of the Gaussian that dominates integer noise.
    distance: Total variation between a release and post-processing of that Gaussian's; 0 in reals.
  """

  sampling: str
  population: int
  clients_per_round: int
  seats: int
  noise_multiplier: float
  distance: float = 0.0

  @property
  def sampling_rate(self) -> float:
    return self.clients_per_round / self.population

  def without_truncation(self) -> 'Round':
    """Returns the round with seats for all clients that may be sampled."""
    if self.sampling == sampling.FIXED or self.seats == self.population:
      return self
    return self._replace(seats=self.population)


def epsilon(
    rounds: Sequence[tuple[Round, int]], accounting: str, delta: float
) -> float:
  """Returns epsilon of all rounds on the same clients together, in any order.

  The epsilon after t rounds is a guarantee only if t, or a budget that ends the run, was fixed in
  advance.

  >>> one = Round('poisson', 6000, 100, 6000, noise_multiplier=1.4)
  >>> round(epsilon([(one, 180)], 'poisson_rdp', delta=6000**-1.1), 3)
  0.744

  Args:
    rounds: Pairs of a round and the number of times that it was released, or begun.
    accounting: A key of `ACCOUNTINGS`.
    delta: delta of all rounds together, in (0, 1).

  Returns:
    epsilon; 0 without rounds, infinite if no finite one can be shown.

  Raises:
    ValueError: If there is no such accounting.
  """
  named(accounting)
  rounds = [(one, num) for one, num in rounds if num]
  if not rounds:
    return 0.0
  if any(not one.noise_multiplier for one, _ in rounds):
    return math.inf
  if by_privacy_loss(accounting):
    distance = sum(one.distance * num for one, num in rounds)
    in_reals = [(one._replace(distance=0.0), num) for one, num in rounds]
    return _less_than_delta(_by_loss_or_renyi(in_reals, accounting), delta, distance)
  if accounting == 'paper':
    orders = _PAPER_ORDERS
    divergence = [
        sum(_poisson_rdp(one, order) * num for one, num in rounds) for order in orders
    ]
    return float(np.nanmin(divergence + math.log(1 / delta) / (np.array(orders) - 1)))
  return _by_renyi(rounds, accounting, delta)


def _by_loss_or_renyi(rounds, accounting: str) -> Callable[[float], float]:
  """Maps delta to epsilon of rounds of noise in reals, the smaller of two upper bounds."""
  step = _step(rounds, accounting)
  by_loss = pld.epsilon_of([(_ROUND_LOSS[accounting](one, step), num) for one, num in rounds])
  return lambda delta: _by_renyi(rounds, accounting, delta, most=by_loss(delta))


def _by_renyi(rounds, accounting: str, delta: float, most: float = math.inf) -> float:
  """Returns epsilon by Renyi DP of the sampling that an accounting assumes, or `most` if less."""
  if ACCOUNTINGS[accounting].sampling == sampling.FIXED:
    return _of_renyi(rounds, delta, _fixed_rdp, lambda one: one.distance, most)
  # A limit of seats is part of the divergences, or a failure; both are valid.
  return min(
      _of_renyi(rounds, delta, _poisson_rdp, lambda one: one.distance + _overflow(one), most),
      _of_renyi(rounds, delta, _truncated_rdp, lambda one: one.distance, most),
  )


def _of_renyi(rounds, delta, rdp_of, distance_of, most) -> float:
  """Returns epsilon of rounds by Renyi DP.

  Args:
    rounds: See `epsilon`.
    delta: See `epsilon`.
    rdp_of: Maps a `Round` and an order to the divergence of the round's model.
    distance_of: Total variation between a release and the model.
    most: An upper bound that is known; what can't give less is not computed, which takes time.
  """
  orders, divergences = [], []
  for order in _ORDERS:
    # epsilon is the divergence, which grows with the order, and this.
    if math.log1p(-1 / order) - math.log(delta * order) / (order - 1) >= most:
      continue
    orders.append(order)
    divergences.append(sum(rdp_of(one, order) * num for one, num in rounds))
    if most <= divergences[-1] < math.inf:  # Infinite where dp-accounting's series diverges.
      break
  if not orders:
    return most
  distance = sum(distance_of(one) * num for one, num in rounds)
  return min(most, _less_than_delta(
      lambda delta: float(rdp.compute_epsilon(orders, divergences, delta)[0]), delta, distance
  ))


def _less_than_delta(epsilon_of: Callable[[float], float], delta: float, distance: float) -> float:
  """Returns epsilon of releases that are at a distance from a model.

  (epsilon, delta) for the model makes (epsilon, delta + (1 + e^epsilon) distance) for them.

  Args:
    epsilon_of: epsilon of the model at a delta.
    delta: Of the releases.
    distance: Total variation between all of them and the model's.
  """
  found = epsilon_of(delta)
  for _ in range(_MOST_STEPS_TO_DELTA):
    if math.isinf(found) or not distance:
      return found
    left = delta - (1 + math.exp(min(found, 700))) * distance
    again = epsilon_of(left) if left > 0 else math.inf
    if again <= found:
      return found
    found = again * (1 + 1e-9)
  return math.inf


def by_privacy_loss(accounting: str) -> bool:
  """Whether an accounting composes distributions, which takes time."""
  return accounting in _SENSITIVITY


def deltas(one: Round, num: int, epsilons: Sequence[float]) -> np.ndarray:
  """Returns delta of `num` rounds at each epsilon, at least 0, by PLD, without truncation."""
  name = f'{one.sampling}_pld'
  step = max(_step([(one, num)], name), _COARSE_STEP)
  loss = _ROUND_LOSS[name](one.without_truncation(), step)
  return pld.deltas(loss, num, list(epsilons))


def _step(rounds: Sequence[tuple[Round, int]], accounting: str) -> float:
  """Returns the step of the one grid on which the losses of all rounds add up."""
  sensitivity = _SENSITIVITY[accounting]
  return pld.step_of(
      [(one.noise_multiplier / sensitivity, one.sampling_rate, num) for one, num in rounds]
  )


@functools.lru_cache
def _full(one: Round) -> float:
  """The probability that the others fill the seats."""
  if one.sampling == sampling.FIXED:
    return 0.0
  return float(stats.binom.sf(one.seats - 1, one.population - 1, one.sampling_rate))


@functools.lru_cache
def _overflow(one: Round) -> float:
  """The probability that more clients are sampled than there are seats."""
  if one.sampling == sampling.FIXED:
    return 0.0
  return float(stats.binom.sf(one.seats, one.population, one.sampling_rate))


@functools.lru_cache(_DIVERGENCES_KEPT)
def _poisson_rdp(one: Round, order: float) -> float:
  """Renyi DP of one round at the order, with seats for all."""
  event = dp_accounting.PoissonSampledDpEvent(
      one.sampling_rate,
      dp_accounting.GaussianDpEvent(one.noise_multiplier),
  )
  return _divergence(order, event)


@functools.lru_cache(_DIVERGENCES_KEPT)
def _truncated_rdp(one: Round, order: float) -> float:
  """Renyi DP of one round at the order, with its seats.

  Whether the others fill the seats does not depend on the client in question. If not, the round
  is as with seats for all. If so, the client, sampled with probability q, takes the place of
  another with probability `seats` / (others + 1), which moves the sum by 2 C. The
  exponential of (alpha - 1) times the divergence is jointly convex.
  """
  plain = _poisson_rdp(one, order)
  full = _full(one)
  if not full:
    return plain
  rate = one.sampling_rate * one.seats / (one.seats + 1)
  replaced = _divergence(order, dp_accounting.PoissonSampledDpEvent(
      rate, dp_accounting.GaussianDpEvent(one.noise_multiplier / 2)
  ))
  power = order - 1
  return np.logaddexp(
      math.log1p(-full) + power * plain, math.log(full) + power * replaced
  ) / power


@functools.lru_cache(_DIVERGENCES_KEPT)
def _fixed_rdp(one: Round, order: float) -> float:
  """Renyi DP of one round at the order."""
  event = dp_accounting.GaussianDpEvent(one.noise_multiplier / 2)
  if one.clients_per_round < one.population:
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        one.population, one.clients_per_round, event
    )
  return _divergence(order, event, dp_accounting.NeighboringRelation.REPLACE_ONE)


def _divergence(order, event, *relation) -> float:
  (divergence,) = rdp.RdpAccountant([order], *relation).compose(event).rdp
  return divergence


def _poisson_loss(one: Round, step: float) -> pld.Loss:
  # What Poisson sampling would give a run with another sampling: no truncation.
  seats = one.seats if one.sampling == sampling.POISSON else one.population
  return pld.poisson(
      one.noise_multiplier, one.population, one.clients_per_round, seats, step
  )


def _fixed_loss(one: Round, step: float) -> pld.Loss:
  return pld.fixed(
      one.noise_multiplier, one.population, one.clients_per_round, step
  )


# A round's privacy loss, from a specification and the grid's step.
_ROUND_LOSS = {
    'poisson_pld': _poisson_loss,
    'fixed_pld': _fixed_loss,
}
_SENSITIVITY = {'poisson_pld': 1, 'fixed_pld': 2}
