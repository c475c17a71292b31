"""Epsilon of runs under every accounting, each with the assumption that it rests on.

Every round releases a sum over sampled clients of vectors clipped to C, plus noise of
standard deviation C sigma (`FedSmpFactory`); k and d do not enter. What that guarantees
depends on how clients are sampled and on what 'one client more or less' means:

  name             sampling            adjacency           sum's sensitivity
  poisson_pld      Poisson, rate r/n   add or remove one   C
  fixed_pld        exactly r of n,     replace one         2 C
                   no replacement
  poisson_rdp      Poisson, rate r/n   add or remove one   C
  fixed_rdp        exactly r of n      replace one         2 C
  fixed_pld_lower  exactly r of n      replace one         2 C
  paper            Poisson, rate r/n   add or remove one   C

`*_pld` are composed privacy loss distributions; `privacy_loss` says which and why, and
that `fixed_pld_lower` is a LOWER bound: no accountant of that sampling may say less.
`*_rdp` are Renyi DP with the conversion of Canonne, Kamath, Steinke (2020): for
Poisson sampling of Gaussian noise dp-accounting's, with a fixed number of clients Wang, Balle,
Kasiviswanathan (2019), Theorem 9, at noise multiplier sigma / 2, since replacing a client moves
a sum by up to 2 C and dp-accounting takes the multiplier relative to that. With integer noise
(`lattice`) they hold too, by `renyi`, and PLD does not. `paper` is the paper's own
accounting (Renyi DP, conversion of Lemma 2), which reproduces its tables.
"""

from collections.abc import Sequence
import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import stats

from fedsmp_tff.privacy import pld
from fedsmp_tff.privacy import rdp as rdp_lib
from fedsmp_tff.privacy import sampling

if TYPE_CHECKING:
  from fedsmp_tff.privacy.spec import PrivacySpec

_INTEGER_ORDERS = (*range(2, 64), 80, 96, 128, 192, 256, 384, 512, 1024)
_TENTHS = tuple(1 + x / 10 for x in range(1, 100))
_ORDERS = (*_TENTHS, *_INTEGER_ORDERS[_INTEGER_ORDERS.index(11):])
# The orders of Opacus 0.x, which the paper used.
_PAPER_ORDERS = (*_TENTHS, *range(12, 64))
_MOST_STEPS_TO_DELTA = 100
# For many deltas at once; as all upper bounds, they are no less for it.
_COARSE_STEP = 1e-3


class Accounting(NamedTuple):
  """One way to state epsilon, and what it takes for granted.

  Attributes:
    title: How it is computed.
    assumption: Adjacency and sensitivity.
    sampling: The sampling that it is for: `POISSON` or `FIXED`.
    guarantees: Whether it is an upper bound, and so a guarantee, for that sampling.
    any_noise: Whether it can be had for integer noise.
  """

  title: str
  assumption: str
  sampling: str
  guarantees: bool = True
  any_noise: bool = False


_ONE_MORE = 'add-or-remove-one adjacency, sensitivity C'
_ANOTHER = 'replace-one adjacency, sensitivity 2C'
_BY_POISSON = 'Poisson sampling at rate r/n'
_BY_FIXED = 'exactly r of n clients a round, without replacement'

ACCOUNTINGS = {
    'poisson_pld': Accounting(f'PLD, {_BY_POISSON}', _ONE_MORE, sampling.POISSON),
    'fixed_pld': Accounting(f'PLD, {_BY_FIXED}', _ANOTHER, sampling.FIXED),
    'poisson_rdp': Accounting(f'RDP, {_BY_POISSON}', _ONE_MORE, sampling.POISSON, any_noise=True),
    'fixed_rdp': Accounting(f'RDP, {_BY_FIXED}', _ANOTHER, sampling.FIXED, any_noise=True),
    'fixed_pld_lower': Accounting(
        f'LOWER BOUND by PLD, {_BY_FIXED}', _ANOTHER, sampling.FIXED, guarantees=False
    ),
    'paper': Accounting(
        f"the paper's: RDP, {_BY_POISSON}, classic conversion", _ONE_MORE, sampling.POISSON
    ),
}


def epsilon_of_runs(
    runs: Sequence[tuple['PrivacySpec', int]], accounting: str, delta: float
) -> float:
  """epsilon of all that some runs released about the same clients, in any order.

  Args:
    runs: Specifications, each with the rounds that were released, or begun. Their own
      `delta` and `rounds` don't enter.
    accounting: A key of `ACCOUNTINGS`.
    delta: In (0, 1), for all together.

  Returns:
    epsilon; 0 without rounds, infinite if no finite one can be shown.

  Raises:
    ValueError: If there is no such accounting, or not for the noise of a run.
  """
  if accounting not in ACCOUNTINGS:
    raise ValueError(
        f'`accounting` must be one of {list(ACCOUNTINGS)}. Found'
        f' {accounting!r}.'
    )
  runs = [(spec, rounds) for spec, rounds in runs if rounds]
  if not runs:
    return 0.0
  if any(not spec.noise_multiplier for spec, _ in runs):
    return math.inf
  if by_privacy_loss(accounting):
    for spec, _ in runs:
      if spec.lattice is not None:
        raise ValueError(
            f'`accounting`={accounting!r} takes Gaussian noise. Found'
            f' {spec.noise!r}; choose one by Renyi DP.'
        )
    # Losses add up on one grid.
    step = max(
        pld.step_of(
            spec.noise_multiplier / _SENSITIVITY[accounting],
            lower=not ACCOUNTINGS[accounting].guarantees,
        )
        for spec, _ in runs
    )
    return pld.epsilon(
        [(_ROUND_LOSS[accounting](spec, step), rounds) for spec, rounds in runs], delta
    )
  if accounting == 'paper':
    orders = _PAPER_ORDERS
    divergence = sum(_gaussian_poisson(s, orders) * rounds for s, rounds in runs)
    return float(np.nanmin(divergence + math.log(1 / delta) / (np.array(orders) - 1)))
  integers = any(spec.lattice is not None for spec, _ in runs)
  orders = _INTEGER_ORDERS if integers else _ORDERS
  poisson = ACCOUNTINGS[accounting].sampling == sampling.POISSON
  divergence = sum(
      (_poisson_rdp if poisson else _fixed_rdp)(spec, orders) * rounds
      for spec, rounds in runs
  )
  # How far all releases may be from what the divergences are about.
  distance = sum(_distance(spec, poisson) * rounds for spec, rounds in runs)

  def at(delta):
    return float(rdp.compute_epsilon(orders, divergence, delta)[0]) if delta > 0 else math.inf

  # (epsilon, delta) for those makes (epsilon, delta + (1 + e^epsilon) distance) for these.
  epsilon = at(delta)
  for _ in range(_MOST_STEPS_TO_DELTA):
    if math.isinf(epsilon) or not distance:
      return epsilon
    again = at(delta - (1 + math.exp(min(epsilon, 700))) * distance)
    if again <= epsilon:
      return epsilon
    epsilon = again * (1 + 1e-9)
  return math.inf


def by_privacy_loss(accounting: str) -> bool:
  """Whether an accounting composes distributions, which takes time."""
  return accounting in _ROUND_LOSS


def deltas(spec: 'PrivacySpec', epsilons: Sequence[float]) -> np.ndarray:
  """delta of all rounds at each epsilon, at least 0, by PLD; truncation is left out."""
  name = f'{spec.sampling}_pld'
  step = pld.step_of(spec.noise_multiplier / _SENSITIVITY[name])
  step = max(step, _COARSE_STEP)
  one = _ROUND_LOSS[name](spec.without_truncation(), step)
  return np.array(pld.deltas(one, spec.rounds, list(epsilons)))


def _distance(spec: 'PrivacySpec', poisson: bool) -> float:
  """Total variation between a release and its model: no truncation, exact noise."""
  truncated = 0.0
  if poisson and spec.sampling == sampling.POISSON:
    truncated = stats.binom.sf(
        spec.seats, spec.population, spec.clients_per_round / spec.population
    )
  return truncated + (spec.lattice.statistical_distance if spec.lattice else 0.0)


@functools.lru_cache
def _gaussian_poisson(spec: 'PrivacySpec', orders: tuple) -> np.ndarray:
  event = dp_accounting.PoissonSampledDpEvent(
      spec.clients_per_round / spec.population,
      dp_accounting.GaussianDpEvent(spec.noise_multiplier),
  )
  return _divergence(orders, event)


@functools.lru_cache
def _poisson_rdp(spec: 'PrivacySpec', orders: tuple) -> np.ndarray:
  """Renyi DP of one round at the orders, but for truncation."""
  if spec.lattice is None:
    return _gaussian_poisson(spec, orders)
  rate = spec.clients_per_round / spec.population
  return rdp_lib.poisson(spec.lattice.curve(moved=1), rate, orders)


@functools.lru_cache
def _fixed_rdp(spec: 'PrivacySpec', orders: tuple) -> np.ndarray:
  """Renyi DP of one round at the orders."""
  if spec.lattice is not None:
    rate = spec.clients_per_round / spec.population
    return rdp_lib.fixed(spec.lattice.curve(moved=2), rate, orders)
  event = dp_accounting.GaussianDpEvent(spec.noise_multiplier / 2)
  if spec.clients_per_round < spec.population:
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        spec.population, spec.clients_per_round, event
    )
  return _divergence(orders, event, dp_accounting.NeighboringRelation.REPLACE_ONE)


def _divergence(orders, event, *relation) -> np.ndarray:
  accountant = rdp.RdpAccountant(orders, *relation).compose(event)
  return np.array(accountant.rdp)


def _poisson_loss(spec: 'PrivacySpec', step: float) -> pld.Round:
  # What Poisson sampling would give a run with another sampling: no truncation.
  seats = spec.seats if spec.sampling == sampling.POISSON else spec.population
  return pld.poisson(
      spec.noise_multiplier, spec.population, spec.clients_per_round, seats, step
  )


def _fixed_loss(spec: 'PrivacySpec', step: float) -> pld.Round:
  return pld.fixed(
      spec.noise_multiplier, spec.population, spec.clients_per_round, step
  )


def _fixed_loss_lower(spec: 'PrivacySpec', step: float) -> pld.Round:
  return pld.fixed_lower(
      spec.noise_multiplier, spec.population, spec.clients_per_round, step
  )


# A round's privacy loss, from a specification and the grid's step.
_ROUND_LOSS = {
    'poisson_pld': _poisson_loss,
    'fixed_pld': _fixed_loss,
    'fixed_pld_lower': _fixed_loss_lower,
}
_SENSITIVITY = {'poisson_pld': 1, 'fixed_pld': 2, 'fixed_pld_lower': 2}


