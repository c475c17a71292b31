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
dp-accounting takes the multiplier relative to that. With integer noise (`lattice`) they are valid
too, by `rdp`; PLD is valid for discrete Gaussian noise (`discrete_gaussian`), not for Skellam
noise. `paper` is the paper's own accounting (Renyi DP, conversion of Lemma 2), which reproduces
its tables. The RDP accounting of TensorFlow Privacy lives in dp-accounting since version 0.9, so
`poisson_rdp` is its figure too.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import NamedTuple, Optional

import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import stats

from fedsmp_tff.mechanism import lattice as lattice_lib
from fedsmp_tff.privacy import discrete_gaussian
from fedsmp_tff.privacy import pld
from fedsmp_tff.privacy import rdp as rdp_lib
from fedsmp_tff.privacy import sampling

_INTEGER_ORDERS = (*range(2, 64), 80, 96, 128, 192, 256, 384, 512, 1024)
_TENTHS = tuple(1 + x / 10 for x in range(1, 100))
_ORDERS = (*_TENTHS, *_INTEGER_ORDERS[_INTEGER_ORDERS.index(11):])
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
    any_noise: Whether it accounts for integer noise of any kind; see `Round.can_account`.
  """

  title: str
  assumption: str
  sampling: str
  any_noise: bool = False


_PLD = 'PLD (RDP if smaller)'
_ONE_MORE = 'add-or-remove-one adjacency, sensitivity C'
_ANOTHER = 'replace-one adjacency, sensitivity 2C'
_BY_POISSON = 'Poisson sampling at rate r/n'
_BY_FIXED = 'exactly r of n clients a round, without replacement'

ACCOUNTINGS = {
    'poisson_pld': Accounting(f'{_PLD}, {_BY_POISSON}', _ONE_MORE, sampling.POISSON),
    'fixed_pld': Accounting(f'{_PLD}, {_BY_FIXED}', _ANOTHER, sampling.FIXED),
    'poisson_rdp': Accounting(f'RDP, {_BY_POISSON}', _ONE_MORE, sampling.POISSON, any_noise=True),
    'fixed_rdp': Accounting(f'RDP, {_BY_FIXED}', _ANOTHER, sampling.FIXED, any_noise=True),
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
    noise_multiplier: sigma.
    lattice: The encoding of a client's integers; None with noise in reals.
  """

  sampling: str
  population: int
  clients_per_round: int
  seats: int
  noise_multiplier: float
  lattice: Optional[lattice_lib.Lattice] = None

  @property
  def sampling_rate(self) -> float:
    return self.clients_per_round / self.population

  def can_account(self, accounting: str) -> bool:
    """Whether an accounting is for this noise."""
    how = named(accounting)
    if self.lattice is None or how.any_noise:
      return True
    by_loss = accounting in _ROUND_LOSS
    return by_loss and discrete_gaussian.has_dominating(self.lattice)

  def in_reals(self) -> 'Round':
    """Returns a round of Gaussian noise in reals, which is no more private."""
    if self.lattice is None:
      return self
    sigma = discrete_gaussian.dominating(self.lattice).noise_multiplier
    return self._replace(noise_multiplier=sigma, lattice=None)

  def without_noise_of(self, colluding: float) -> 'Round':
    """Returns the round if a share of the participants, in [0, 1), leaves out its noise.

    Variances of noise shares add up, of the `1 - colluding` that are left. Integer noise
    comes in whole shares, which stay as they are, as the encoding does.
    """
    if self.lattice is None:
      return self._replace(noise_multiplier=self.noise_multiplier * math.sqrt(1 - colluding))
    before = self.lattice.min_reporting
    # A share of 0.1 of 170 is 17: not one more for the rounding of floats.
    left = math.floor(before * (1 - colluding) + 1e-9)
    sigma = self.noise_multiplier * math.sqrt(left / before)
    if not left:
      return self._replace(noise_multiplier=sigma)
    # Neither the variance of a share nor the scale of the lattice moves with both of these.
    lattice = dataclasses.replace(self.lattice, noise_multiplier=sigma, min_reporting=left)
    return self._replace(noise_multiplier=sigma, lattice=lattice)

  def without_truncation(self) -> 'Round':
    """Returns the round with seats for all clients that may be sampled."""
    if self.sampling == sampling.FIXED or self.seats == self.population:
      return self
    return self._replace(seats=self.population)


def can_account(rounds: Sequence[tuple[Round, int]], accounting: str) -> bool:
  """Whether an accounting is for the noise of all rounds, each with its number."""
  return all(one.can_account(accounting) for one, _ in rounds)


def tightest(sampling_name: str, rounds: Sequence[tuple[Round, int]]) -> str:
  """Returns the tightest of `ACCOUNTINGS` for a sampling and the noise of all rounds."""
  by_loss = f'{sampling_name}_pld'
  return by_loss if can_account(rounds, by_loss) else f'{sampling_name}_rdp'


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
    ValueError: If there is no such accounting, or it does not cover the noise of a round.
  """
  named(accounting)
  rounds = [(one, num) for one, num in rounds if num]
  if not rounds:
    return 0.0
  if any(not one.noise_multiplier for one, _ in rounds):
    return math.inf
  for one, _ in rounds:
    if not one.can_account(accounting):
      raise ValueError(
          f'`accounting`={accounting!r} takes Gaussian noise. Found'
          f' {one.lattice.kind!r} of variance {one.lattice.share_variance:.3g} a share;'
          ' choose one by Renyi DP.'
      )
  if by_privacy_loss(accounting):
    distance = sum(_distance_of_reals(one) * num for one, num in rounds)
    rounds = [(one.in_reals(), num) for one, num in rounds]
    return _less_than_delta(_by_loss_or_renyi(rounds, accounting), delta, distance)
  if accounting == 'paper':
    orders = _PAPER_ORDERS
    divergence = [
        sum(_gaussian_poisson(one, order) * num for one, num in rounds) for order in orders
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
    return _of_renyi(rounds, delta, _fixed_rdp, _inexact, most)
  # A limit of seats is part of the divergences, or a failure; both are valid.
  return min(
      _of_renyi(rounds, delta, _poisson_rdp, lambda one: _inexact(one) + _overflow(one), most),
      _of_renyi(rounds, delta, _truncated_rdp, _inexact, most),
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
  integers = any(one.lattice is not None for one, _ in rounds)
  orders, divergences = [], []
  for order in _INTEGER_ORDERS if integers else _ORDERS:
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


def _distance_of_reals(one: Round) -> float:
  """Total variation between a release and post-processing of `Round.in_reals`'s."""
  return discrete_gaussian.dominating(one.lattice).distance if one.lattice else 0.0


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


def _inexact(one: Round) -> float:
  """Total variation between integer noise and the distribution that it is drawn for."""
  return one.lattice.statistical_distance if one.lattice else 0.0


@functools.lru_cache(_DIVERGENCES_KEPT)
def _gaussian_poisson(one: Round, order: float) -> float:
  event = dp_accounting.PoissonSampledDpEvent(
      one.sampling_rate,
      dp_accounting.GaussianDpEvent(one.noise_multiplier),
  )
  return _divergence(order, event)


@functools.lru_cache(_DIVERGENCES_KEPT)
def _poisson_rdp(one: Round, order: float) -> float:
  """Renyi DP of one round at the order, with seats for all."""
  if one.lattice is None:
    return _gaussian_poisson(one, order)
  (divergence,) = rdp_lib.poisson(
      rdp_lib.curve_of(one.lattice, moved=1), one.sampling_rate, [order]
  )
  return divergence


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
  if one.lattice is None:
    replaced = _divergence(order, dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(one.noise_multiplier / 2)
    ))
  else:
    (replaced,) = rdp_lib.poisson(rdp_lib.curve_of(one.lattice, moved=2), rate, [order])
  power = order - 1
  return np.logaddexp(
      math.log1p(-full) + power * plain, math.log(full) + power * replaced
  ) / power


@functools.lru_cache(_DIVERGENCES_KEPT)
def _fixed_rdp(one: Round, order: float) -> float:
  """Renyi DP of one round at the order."""
  if one.lattice is not None:
    (divergence,) = rdp_lib.fixed(
        rdp_lib.curve_of(one.lattice, moved=2), one.sampling_rate, [order]
    )
    return divergence
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
