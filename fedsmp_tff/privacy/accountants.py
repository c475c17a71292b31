"""Accountants: each computes epsilon of rounds for one way to sample clients.

Every round releases a sum over sampled clients of vectors clipped to C, plus noise of standard
deviation C sigma (`FedSmpFactory`); epsilon does not depend on k and d. With Poisson sampling and
random allocation, adjacent populations differ by one added or removed client, which moves the sum
by up to C; with fixed-size sampling, by one replaced client, which moves it by up to 2 C.

A custom accountant derives from `Accountant`; `tightest_sound_accountant` considers only
`ACCOUNTANTS`.
"""

import abc
from collections.abc import Callable
import math
from typing import Optional, final

from dp_accounting import rdp
import numpy as np

from fedsmp_tff.privacy import divergences
from fedsmp_tff.privacy import pld
from fedsmp_tff.privacy import round as round_lib
from fedsmp_tff.privacy import sampling as sampling_lib

_TENTHS = tuple(1 + x / 10 for x in range(1, 100))
_ORDERS = (*_TENTHS, *range(11, 64), 80, 96, 128, 192, 256, 384, 512, 1024)
_PAPER_ORDERS = (*_TENTHS, *range(12, 64))  # The orders of Opacus 0.x, which the paper used.
_MAX_USEFUL_STEPS_TO_DELTA = 100
_MIN_NOISE = 1e-3  # Less has no proof here.
_MAX_ROUNDS_PER_BLOCK = 10**6  # More take minutes, and then more memory than there is.

_ADD_OR_REMOVE = 'add-or-remove-one adjacency, sensitivity C'
_REPLACE = 'replace-one adjacency, sensitivity 2C'
_POISSON = 'Poisson sampling at rate r/n'
_FIXED = 'exactly r of n clients per round, without replacement'
_ALLOCATION = 'random allocation, one secret round per client and block; begun blocks count whole'


class Accountant(abc.ABC):
  """Computes epsilon of rounds on the same clients.

  Epsilon after t rounds is a guarantee only if t, or a budget that ends the run, was fixed in
  advance.

  Attributes:
    name: Short name.
    title: Method and sampling.
    assumption: Adjacency and sensitivity.
    sampling: Assumed sampling: one of `sampling.KINDS`.
    guarantees: Whether epsilon is an upper bound, not an estimate.
  """

  name: str
  title: str
  assumption: str
  sampling: str
  guarantees: bool = True

  def supports(self, round_params: round_lib.Round) -> bool:
    """Returns whether the accountant's assumptions hold in such a round."""
    return round_params.sampling == self.sampling

  @abc.abstractmethod
  def epsilon_fn(self, rounds: round_lib.Rounds) -> Callable[[float], float]:
    """Returns the function from delta to epsilon of all rounds together, in any order.

    Args:
      rounds: At least one round, of this accountant's `sampling`, with noise, without `distance`.
        Of an allocation each stands for a block, with slots for all clients.
    """

  def is_sound(self, round_params: round_lib.Round) -> bool:
    """Returns whether epsilon is a guarantee for such a round."""
    return self.guarantees and self.supports(round_params)

  @final
  def epsilon(self, rounds: round_lib.Rounds, delta: float) -> float:
    """Returns epsilon of all rounds together; 0 without rounds, infinite without a proof.

    Rounds with another sampling scheme count as r clients sampled by `self.sampling`. Of a block
    that has begun, all rounds count: to leave out its other rounds is post-processing.

    Args:
      rounds: Rounds on the same clients.
      delta: delta of all rounds together, in (0, 1).
    """
    rounds = [
        (params if self.supports(params) else params.with_sampling(self.sampling)).in_blocks(num)
        for params, num in rounds if num
    ]
    if not rounds:
      return 0.0
    if any(
        params.noise_multiplier < _MIN_NOISE or params.rounds_per_block > _MAX_ROUNDS_PER_BLOCK
        for params, _ in rounds
    ):
      return math.inf
    return self._at_distance([(params.with_bounded_noise(), num) for params, num in rounds], delta)

  def _at_distance(self, rounds: round_lib.Rounds, delta: float) -> float:
    """Returns epsilon of rounds with distances, which are charged to delta.

    (epsilon, delta) for Gaussian rounds gives (epsilon, delta + (1 + e^epsilon) distance) here.
    """
    distance = sum(params.distance * num for params, num in rounds)
    epsilon_fn = self.epsilon_fn([(params._replace(distance=0.0), num) for params, num in rounds])
    epsilon = epsilon_fn(delta)
    for _ in range(_MAX_USEFUL_STEPS_TO_DELTA):
      if math.isinf(epsilon) or not distance:
        return epsilon
      left = delta - (1 + math.exp(min(epsilon, 700))) * distance
      larger = epsilon_fn(left) if left > 0 else math.inf
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
  def _divergence(self, round_params: round_lib.Round, order: float) -> float:
    """Returns the Rényi divergence of one round at the order."""

  def _min_divergence(self, round_params: round_lib.Round, order: float) -> float:
    """Returns the divergence, at most that of a round in which all clients take part."""
    unsampled = order / 2 / round_params.unsampled_noise_multiplier**2
    return min(self._divergence(round_params, order), unsampled)

  def epsilon_fn(self, rounds: round_lib.Rounds) -> Callable[[float], float]:
    def epsilon(delta):
      orders, bounds = [], []
      for order in _ORDERS:
        # epsilon is the divergence, which grows with the order, plus this.
        if math.log1p(-1 / order) - math.log(delta * order) / (order - 1) >= self._upper_bound:
          continue
        orders.append(order)
        bounds.append(sum(self._min_divergence(params, order) * num for params, num in rounds))
        # Infinite where dp-accounting's series diverges.
        if self._upper_bound <= bounds[-1] < math.inf:
          break
      if not orders:
        return self._upper_bound
      return min(self._upper_bound, float(rdp.compute_epsilon(orders, bounds, delta)[0]))

    return epsilon


class _PoissonRdp(_Rdp):
  """RDP accountant for Poisson sampling, by dp-accounting."""

  name, title = 'poisson_rdp', f'RDP, {_POISSON}'
  assumption, sampling = _ADD_OR_REMOVE, sampling_lib.POISSON

  def _at_distance(self, rounds: round_lib.Rounds, delta: float) -> float:
    # Truncation is part of the divergences, or a failure in delta; both are sound.
    untruncated = [(params.without_truncation(), num) for params, num in rounds]
    return min(super()._at_distance(rounds, delta), super()._at_distance(untruncated, delta))

  def _divergence(self, round_params: round_lib.Round, order: float) -> float:
    _, n, r, num_slots, sigma, _ = round_params
    return divergences.poisson(order, n, r, num_slots, sigma)


class _FixedRdp(_Rdp):
  """RDP accountant for fixed-size sampling: Wang, Balle, Kasiviswanathan (2019), Theorem 9."""

  name, title = 'fixed_rdp', f'RDP, {_FIXED}'
  assumption, sampling = _REPLACE, sampling_lib.FIXED

  def _divergence(self, round_params: round_lib.Round, order: float) -> float:
    _, n, r, _, sigma, _ = round_params
    return divergences.fixed(order, n, r, sigma)


POISSON_RDP, FIXED_RDP = _PoissonRdp(), _FixedRdp()


class _Pld(Accountant):
  """PLD accountant, or one of two other upper bounds if it is smaller: RDP, or no sampling."""

  rdp: Optional[type[_Rdp]] = None  # None: no bound by RDP.

  @abc.abstractmethod
  def components(self, round_params: round_lib.Round) -> list[tuple[float, float, float]]:
    """Returns the mixture that a round is.

    Returns:
      Each component's noise multiplier, relative to the sensitivity, sampling rate and probability.
    """

  @abc.abstractmethod
  def loss(self, round_params: round_lib.Round, step: float) -> pld.Loss:
    """Returns the privacy loss of one round on a grid of the step."""

  def epsilon_fn(self, rounds: round_lib.Rounds) -> Callable[[float], float]:
    components = [
        (sigma, rate, probability * num)
        for params, num in rounds for sigma, rate, probability in self.components(params)
    ]
    step = pld.grid_step(components)  # Of the common grid of all rounds' losses.
    bounds = [pld.unsampled([(params.unsampled_noise_multiplier, num) for params, num in rounds])]
    if step < pld.MAX_USEFUL_STEP:
      losses = [(self.loss(params, step), num) for params, num in rounds]
      bounds.append(pld.composed_epsilon_fn(losses))

    def epsilon(delta):
      bound = min(b(delta) for b in bounds)
      return bound if self.rdp is None else self.rdp(bound).epsilon(rounds, delta)

    return epsilon


class _AddOrRemovePld(_Pld):
  """Composes Poisson-sampled rounds with blocks of allocations; adjacency is the same."""

  name, title = 'add_or_remove_pld', f'PLD, {_POISSON} and {_ALLOCATION}'
  assumption, sampling = _ADD_OR_REMOVE, sampling_lib.ALLOCATION

  def supports(self, round_params: round_lib.Round) -> bool:
    return round_params.sampling in (sampling_lib.POISSON, sampling_lib.ALLOCATION)

  def components(self, round_params: round_lib.Round) -> list[tuple[float, float, float]]:
    kind, n, r, num_slots, sigma, _ = round_params
    if kind == sampling_lib.ALLOCATION:
      # A block's chi-squared divergence is that of a round with this sampling rate.
      return [(sigma, 1 / math.sqrt(round_params.rounds_per_block), 1.0)]
    full, in_slots = pld.truncation(n, r, num_slots)
    plain = (sigma, round_params.sampling_rate, 1 - full)
    return [c for c in (plain, (sigma / 2, in_slots, full)) if c[-1]]

  def loss(self, round_params: round_lib.Round, step: float) -> pld.Loss:
    kind, n, r, num_slots, sigma, _ = round_params
    if kind == sampling_lib.ALLOCATION:
      return pld.allocation(sigma, round_params.rounds_per_block, step)
    return pld.poisson(sigma, n, r, num_slots, step)


class _PoissonPld(_AddOrRemovePld):
  name, title = 'poisson_pld', f'PLD (RDP or no sampling if smaller), {_POISSON}'
  sampling, supports, rdp = sampling_lib.POISSON, Accountant.supports, _PoissonRdp


class _AllocationPld(_AddOrRemovePld):
  name, title = 'allocation_pld', f'PLD (no sampling if smaller), {_ALLOCATION}'
  supports = Accountant.supports


class _FixedPld(_Pld):
  name, title = 'fixed_pld', f'PLD (RDP or no sampling if smaller), {_FIXED}'
  assumption, sampling = _REPLACE, sampling_lib.FIXED
  rdp = _FixedRdp

  def components(self, round_params: round_lib.Round) -> list[tuple[float, float, float]]:
    return [(round_params.noise_multiplier / 2, round_params.sampling_rate, 1.0)]

  def loss(self, round_params: round_lib.Round, step: float) -> pld.Loss:
    _, n, r, _, sigma, _ = round_params
    return pld.fixed(sigma, n, r, step)


class _Paper(Accountant):
  """Reproduces the paper's tables (conversion of Lemma 2), without truncation or integer noise."""

  name = 'paper'
  title = f"the paper's accountant (RDP, {_POISSON}, classic conversion)"
  assumption, sampling = _ADD_OR_REMOVE, sampling_lib.POISSON

  def supports(self, round_params: round_lib.Round) -> bool:
    truncated = round_params.num_slots < round_params.population
    return super().supports(round_params) and not truncated and not round_params.distance

  def epsilon_fn(self, rounds: round_lib.Rounds) -> Callable[[float], float]:
    def divergence(order, params):
      _, n, r, _, sigma, _ = params
      return divergences.poisson(order, n, r, n, sigma)

    total = np.array([
        sum(divergence(order, params) * num for params, num in rounds) for order in _PAPER_ORDERS
    ])
    powers = np.array(_PAPER_ORDERS) - 1
    return lambda delta: float(np.nanmin(total + math.log(1 / delta) / powers))


POISSON_PLD, FIXED_PLD, PAPER = _PoissonPld(), _FixedPld(), _Paper()
ALLOCATION_PLD, ADD_OR_REMOVE_PLD = _AllocationPld(), _AddOrRemovePld()
# Among accountants that are sound for the same rounds, the first has the smallest epsilon: PLD uses
# RDP if that gives less, and the paper's conversion adds more at each order, at fewer orders.
ACCOUNTANTS = (POISSON_PLD, FIXED_PLD, POISSON_RDP, FIXED_RDP, ALLOCATION_PLD, PAPER)


def tightest_sound_accountant(rounds: round_lib.Rounds) -> Accountant:
  """Returns the accountant of smallest epsilon that is sound for all rounds.

  It is one of `ACCOUNTANTS`, or `ADD_OR_REMOVE_PLD` for two samplings of one adjacency.

  Raises:
    ValueError: If the rounds do not have the same adjacency.
  """
  for accountant in (*ACCOUNTANTS, ADD_OR_REMOVE_PLD):
    if all(accountant.is_sound(params) for params, _ in rounds):
      return accountant
  raise ValueError(
      'Rounds with fixed-size sampling and rounds with Poisson sampling or random allocation use'
      ' different adjacency, so their guarantees do not compose.'
  )
