"""Accountants: each computes epsilon of rounds for one way to sample clients.

Every round releases a sum over sampled clients of vectors clipped to C, plus noise of standard
deviation C sigma (`FedSmpFactory`); epsilon does not depend on k and d. With Poisson sampling,
adjacent populations differ by one added or removed client, which moves the sum by up to C; with
fixed-size sampling, by one replaced client, which moves it by up to 2 C.

A custom accountant derives from `Accountant`; `claim` considers only `ACCOUNTANTS`.
"""

import abc
from collections.abc import Callable, Sequence
import functools
import math
from typing import NamedTuple, Optional, final

import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import stats

from fedsmp_tff.privacy import pld
from fedsmp_tff.privacy import sampling as sampling_lib

_TENTHS = tuple(1 + x / 10 for x in range(1, 100))
_ORDERS = (*_TENTHS, *range(11, 64), 80, 96, 128, 192, 256, 384, 512, 1024)
_PAPER_ORDERS = (*_TENTHS, *range(12, 64))  # The orders of Opacus 0.x, which the paper used.
_MAX_STEPS_TO_DELTA = 100
_COARSENESS = 16  # Factor on the grid step at the start of a search for sigma.

_ADD_OR_REMOVE = 'add-or-remove-one adjacency, sensitivity C'
_REPLACE = 'replace-one adjacency, sensitivity 2C'
_POISSON = 'Poisson sampling at rate r/n'
_FIXED = 'exactly r of n clients per round, without replacement'


class Round(NamedTuple):
  """Parameters of a round's guarantee: a Gaussian sum, and the release's distance from it.

  Attributes:
    sampling: `sampling.POISSON` or `sampling.FIXED`.
    population: n, in the larger of two adjacent populations.
    clients_per_round: r.
    num_slots: Maximum number of clients that take part.
    noise_multiplier: sigma of the Gaussian noise, or of the Gaussian that dominates integer noise.
    distance: Total variation distance from the Gaussian sum's post-processing; 0 if Gaussian.
  """

  sampling: str
  population: int
  clients_per_round: int
  num_slots: int
  noise_multiplier: float
  distance: float = 0.0

  @property
  def sampling_rate(self) -> float:
    return self.clients_per_round / self.population

  def with_sampling(self, sampling: str) -> 'Round':
    """Returns the round with r clients by another sampling scheme, without truncation."""
    if sampling == self.sampling:
      return self
    num_slots = self.population if sampling == sampling_lib.POISSON else self.clients_per_round
    return self._replace(sampling=sampling, num_slots=num_slots)

  def without_truncation(self) -> 'Round':
    """Returns the round with slots for all clients; truncation becomes part of the distance."""
    if self.sampling == sampling_lib.FIXED or self.num_slots == self.population:
      return self
    overflow = _probability_of_more(self.num_slots, self.population, self.sampling_rate)
    return self._replace(num_slots=self.population, distance=self.distance + overflow)


# Rounds on the same clients, each with the number of times that it was begun.
Rounds = Sequence[tuple[Round, int]]


class Accountant(abc.ABC):
  """Computes epsilon of rounds on the same clients.

  Epsilon after t rounds is a guarantee only if t, or a budget that ends the run, was fixed in
  advance.

  Attributes:
    name: Short name.
    title: Method and sampling.
    assumption: Adjacency and sensitivity.
    sampling: Assumed sampling: `sampling.POISSON` or `sampling.FIXED`.
    guarantees: Whether epsilon is an upper bound, not an estimate.
    faster: Accountant for the start of a search for sigma; None if this accountant is fast.
  """

  name: str
  title: str
  assumption: str
  sampling: str
  guarantees: bool = True
  faster: Optional['Accountant'] = None

  def covers(self, round_params: Round) -> bool:
    """Returns whether the accountant covers everything that happens in such a round."""
    return round_params.sampling == self.sampling

  @abc.abstractmethod
  def of_delta(self, rounds: Rounds) -> Callable[[float], float]:
    """Returns the function from delta to epsilon of all rounds together, in any order.

    Args:
      rounds: At least one round, of this accountant's `sampling`, with noise, without `distance`.
    """

  def is_sound(self, round_params: Round) -> bool:
    """Returns whether epsilon is a guarantee for such a round."""
    return self.guarantees and self.covers(round_params)

  @final
  def epsilon(self, rounds: Rounds, delta: float) -> float:
    """Returns epsilon of all rounds together; 0 without rounds, infinite without a proof.

    Rounds with another sampling scheme count as r clients sampled by `self.sampling`.

    Args:
      rounds: Rounds on the same clients.
      delta: delta of all rounds together, in (0, 1).
    """
    rounds = [(params.with_sampling(self.sampling), num) for params, num in rounds if num]
    if not rounds:
      return 0.0
    if any(not params.noise_multiplier for params, _ in rounds):
      return math.inf
    return self._at_distance(rounds, delta)

  def _at_distance(self, rounds: Rounds, delta: float) -> float:
    """Returns epsilon of rounds with distances, which are charged to delta.

    (epsilon, delta) for Gaussian rounds gives (epsilon, delta + (1 + e^epsilon) distance) here.
    """
    distance = sum(params.distance * num for params, num in rounds)
    of_delta = self.of_delta([(params._replace(distance=0.0), num) for params, num in rounds])
    epsilon = of_delta(delta)
    for _ in range(_MAX_STEPS_TO_DELTA):
      if math.isinf(epsilon) or not distance:
        return epsilon
      left = delta - (1 + math.exp(min(epsilon, 700))) * distance
      larger = of_delta(left) if left > 0 else math.inf
      if larger <= epsilon:
        return epsilon
      epsilon = larger * (1 + 1e-9)
    return math.inf


class _Rdp(Accountant):
  """RDP accountant, with the conversion of Canonne, Kamath, Steinke (2020)."""

  def __init__(self, upper_bound: float = math.inf):
    """Initializes; skips orders that cannot give less than a known upper bound."""
    self._upper_bound = upper_bound

  @abc.abstractmethod
  def _divergence(self, round_params: Round, order: float) -> float:
    """Returns the Rényi divergence of one round at the order."""

  def of_delta(self, rounds: Rounds) -> Callable[[float], float]:
    def epsilon(delta):
      orders, divergences = [], []
      for order in _ORDERS:
        # epsilon is the divergence, which grows with the order, plus this.
        if math.log1p(-1 / order) - math.log(delta * order) / (order - 1) >= self._upper_bound:
          continue
        orders.append(order)
        divergences.append(sum(self._divergence(params, order) * num for params, num in rounds))
        # Infinite where dp-accounting's series diverges.
        if self._upper_bound <= divergences[-1] < math.inf:
          break
      if not orders:
        return self._upper_bound
      return min(self._upper_bound, float(rdp.compute_epsilon(orders, divergences, delta)[0]))

    return epsilon


class _PoissonRdp(_Rdp):
  """RDP accountant for Poisson sampling, by dp-accounting."""

  name, title = 'poisson_rdp', f'RDP, {_POISSON}'
  assumption, sampling = _ADD_OR_REMOVE, sampling_lib.POISSON

  def _at_distance(self, rounds: Rounds, delta: float) -> float:
    # Truncation is part of the divergences, or a failure in delta; both are sound.
    untruncated = [(params.without_truncation(), num) for params, num in rounds]
    return min(super()._at_distance(rounds, delta), super()._at_distance(untruncated, delta))

  def _divergence(self, round_params: Round, order: float) -> float:
    """Returns the Rényi divergence of one round with its slots.

    Whether the other clients fill the slots does not depend on the client in question. If they do
    not, the round is as with slots for all. If they do, the client, sampled with probability q,
    replaces another with probability `num_slots` / (others + 1), which moves the sum by 2 C. The
    exponential of (alpha - 1) times the divergence is jointly convex.
    """
    _, n, _, num_slots, sigma, _ = round_params
    rate, power = round_params.sampling_rate, order - 1
    plain = _poisson_divergence(order, rate, sigma)
    full = _probability_of_more(num_slots - 1, n - 1, rate)
    if not full:
      return plain
    replaced = _poisson_divergence(order, rate * num_slots / (num_slots + 1), sigma / 2)
    summands = math.log1p(-full) + power * plain, math.log(full) + power * replaced
    return np.logaddexp(*summands) / power


class _FixedRdp(_Rdp):
  """RDP accountant for fixed-size sampling: Wang, Balle, Kasiviswanathan (2019), Theorem 9."""

  name, title = 'fixed_rdp', f'RDP, {_FIXED}'
  assumption, sampling = _REPLACE, sampling_lib.FIXED

  def _divergence(self, round_params: Round, order: float) -> float:
    _, n, r, _, sigma, _ = round_params
    # dp-accounting takes the noise multiplier relative to the sensitivity, 2 C.
    event = dp_accounting.GaussianDpEvent(sigma / 2)
    if r < n:
      event = dp_accounting.SampledWithoutReplacementDpEvent(n, r, event)
    return _divergence_of(order, event, dp_accounting.NeighboringRelation.REPLACE_ONE)


POISSON_RDP, FIXED_RDP = _PoissonRdp(), _FixedRdp()


class _Pld(Accountant):
  """PLD accountant, or the RDP accountant if its upper bound is smaller."""

  sensitivity: int  # In units of C.
  rdp: type[_Rdp]

  def __init__(self, coarseness: int = 1):
    """Initializes; `coarseness` is a factor on the grid step that saves time."""
    self._coarseness = coarseness
    self.faster = type(self)(_COARSENESS) if coarseness == 1 else None

  @abc.abstractmethod
  def loss(self, round_params: Round, step: float) -> pld.Loss:
    """Returns the privacy loss of one round on a grid of the step."""

  def of_delta(self, rounds: Rounds) -> Callable[[float], float]:
    described = [
        (params.noise_multiplier / self.sensitivity, params.sampling_rate, num)
        for params, num in rounds
    ]
    step = pld.step_of(described, self._coarseness)  # Of the common grid of all rounds' losses.
    by_loss = pld.epsilon_of([(self.loss(params, step), num) for params, num in rounds])
    return lambda delta: self.rdp(upper_bound=by_loss(delta)).epsilon(rounds, delta)


class _PoissonPld(_Pld):
  name, title = 'poisson_pld', f'PLD (RDP if smaller), {_POISSON}'
  assumption, sampling = _ADD_OR_REMOVE, sampling_lib.POISSON
  sensitivity, rdp = 1, _PoissonRdp

  def loss(self, round_params: Round, step: float) -> pld.Loss:
    _, n, r, num_slots, sigma, _ = round_params
    return pld.poisson(sigma, n, r, num_slots, step)


class _FixedPld(_Pld):
  name, title = 'fixed_pld', f'PLD (RDP if smaller), {_FIXED}'
  assumption, sampling = _REPLACE, sampling_lib.FIXED
  sensitivity, rdp = 2, _FixedRdp

  def loss(self, round_params: Round, step: float) -> pld.Loss:
    _, n, r, _, sigma, _ = round_params
    return pld.fixed(sigma, n, r, step)


class _Paper(Accountant):
  """Reproduces the paper's tables (conversion of Lemma 2), without truncation or integer noise."""

  name = 'paper'
  title = f"the paper's accountant (RDP, {_POISSON}, classic conversion)"
  assumption, sampling = _ADD_OR_REMOVE, sampling_lib.POISSON

  def covers(self, round_params: Round) -> bool:
    truncated = round_params.num_slots < round_params.population
    return super().covers(round_params) and not truncated and not round_params.distance

  def of_delta(self, rounds: Rounds) -> Callable[[float], float]:
    def divergence(order, params):
      return _poisson_divergence(order, params.sampling_rate, params.noise_multiplier)

    divergences = np.array([
        sum(divergence(order, params) * num for params, num in rounds) for order in _PAPER_ORDERS
    ])
    powers = np.array(_PAPER_ORDERS) - 1
    return lambda delta: float(np.nanmin(divergences + math.log(1 / delta) / powers))


POISSON_PLD, FIXED_PLD, PAPER = _PoissonPld(), _FixedPld(), _Paper()
# Among accountants that are sound for the same rounds, the first has the smallest epsilon: PLD uses
# RDP if that gives less, and the paper's conversion adds more at each order, at fewer orders.
ACCOUNTANTS = (POISSON_PLD, FIXED_PLD, POISSON_RDP, FIXED_RDP, PAPER)


def claim(rounds: Rounds) -> Accountant:
  """Returns the accountant of smallest epsilon among `ACCOUNTANTS` that are sound for all rounds.

  Raises:
    ValueError: If the rounds do not have the same sampling scheme.
  """
  for accountant in ACCOUNTANTS:
    if all(accountant.is_sound(params) for params, _ in rounds):
      return accountant
  raise ValueError(
      'Rounds with Poisson sampling and with fixed-size sampling use different adjacency, so their'
      ' guarantees do not compose.'
  )


def _poisson_divergence(order: float, sampling_rate: float, noise_multiplier: float) -> float:
  gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
  return _divergence_of(order, dp_accounting.PoissonSampledDpEvent(sampling_rate, gaussian))


@functools.lru_cache(2**15)
def _divergence_of(order: float, event: dp_accounting.DpEvent, *relation) -> float:
  (divergence,) = rdp.RdpAccountant([order], *relation).compose(event).rdp
  return divergence


@functools.lru_cache
def _probability_of_more(num: int, population: int, sampling_rate: float) -> float:
  """Returns the probability that Poisson sampling takes more than `num` clients."""
  return float(stats.binom.sf(num, population, sampling_rate))
