"""`PrivacySpec`: one object that makes sampler, noise and epsilon, so that they can't drift apart.

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

Algorithm 1 samples exactly r of n clients and accounts as if it were Poisson sampling. Here
the sampler is a choice, and the claim follows from it.

>>> spec = PrivacySpec(6000, 100, 180, 1.4, 1.0, delta=6000**-1.1, seats=6000)
>>> {name: round(spec.epsilon(name), 3) for name in ACCOUNTINGS
...  if name != 'fixed_pld_lower'}  # That one is on another grid, and slower.
{'poisson_pld': 0.63, 'fixed_pld': 3.743, 'poisson_rdp': 0.744, 'fixed_rdp': 5.352, 'paper': 1.008}
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple, Optional

import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import optimize
from scipy import stats

from fedsmp_tff import lattice as lattice_lib
from fedsmp_tff import noise as noise_lib
from fedsmp_tff import privacy_loss
from fedsmp_tff import renyi
from fedsmp_tff import sampling as sampling_lib

POISSON, FIXED = 'poisson', 'fixed'

_INTEGER_ORDERS = (*range(2, 64), 80, 96, 128, 192, 256, 384, 512, 1024)
_TENTHS = tuple(1 + x / 10 for x in range(1, 100))
_ORDERS = (*_TENTHS, *_INTEGER_ORDERS[_INTEGER_ORDERS.index(11):])
# The orders of Opacus 0.x, which the paper used.
_PAPER_ORDERS = (*_TENTHS, *range(12, 64))
_SIGMA_RANGE = (1e-2, 1e4)
# Standard deviations of the number of sampled clients that have seats. PLD accounts
# for truncation at little cost, Renyi DP as a failure, which must be rarer.
_SPREAD, _INTEGER_NOISE_SPREAD = 5, 7
_DEFAULT_INTEGER_BITS = 16
_MOST_STEPS_TO_DELTA = 100


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
    'poisson_pld': Accounting(f'PLD, {_BY_POISSON}', _ONE_MORE, POISSON),
    'fixed_pld': Accounting(f'PLD, {_BY_FIXED}', _ANOTHER, FIXED),
    'poisson_rdp': Accounting(f'RDP, {_BY_POISSON}', _ONE_MORE, POISSON, any_noise=True),
    'fixed_rdp': Accounting(f'RDP, {_BY_FIXED}', _ANOTHER, FIXED, any_noise=True),
    'fixed_pld_lower': Accounting(
        f'LOWER BOUND by PLD, {_BY_FIXED}', _ANOTHER, FIXED, guarantees=False
    ),
    'paper': Accounting(
        f"the paper's: RDP, {_BY_POISSON}, classic conversion", _ONE_MORE, POISSON
    ),
}


@dataclasses.dataclass(frozen=True)
class PrivacySpec:
  """What a run's privacy is made of: sampler, noise and epsilon come from here.

  The unit of privacy is a client with all of its data. With `POISSON` sampling neighbours
  differ by one client added or removed, with `FIXED` by one client replaced. Public are: this
  specification, the masks, every round's release, and so every model. Not public: who
  took part, how many were sampled, and what a client computed.

  Attributes:
    population: n, the clients from which a round's are sampled.
    clients_per_round: r, their number (expected, with `POISSON`); sums are divided by it.
    rounds: T.
    noise_multiplier: sigma: the noise of a released sum has standard deviation C sigma
      at least; 0 gives an infinite epsilon.
    clipping_norm: C, the L2 norm to which a client's vector is clipped; infinite (no
      clipping) only without noise.
    delta: In (0, 1).
    sampling: `POISSON` (each client with probability r/n) or `FIXED` (exactly r of n).
    seats: Participants of a round, each with a share of the noise. `POISSON`: as many as
      five standard deviations above r need (150 for r = 100; seven with integer noise);
      empty seats go to noise-only participants. `FIXED`: r.
    min_reporting: The fewest participants whose sum is released; noise shares are sized
      for it. None: all seats.
    noise: A kind of `noise.KINDS`.
    num_values: With integer noise: how many values a client sends.
    bits: With integer noise: bits of a value; None: 16.
    rotate: With integer noise: see `lattice.Lattice`.
  """

  population: int
  clients_per_round: int
  rounds: int
  noise_multiplier: float
  clipping_norm: float
  delta: float
  sampling: str = POISSON
  seats: Optional[int] = None
  min_reporting: Optional[int] = None
  noise: str = noise_lib.GAUSSIAN
  num_values: Optional[int] = None
  bits: Optional[int] = None
  rotate: bool = True

  def __post_init__(self):
    # Each test is of the form `not (good)`: NaN compares false.
    if not 0 <= self.noise_multiplier < math.inf:
      raise ValueError(
          '`noise_multiplier` must be non-negative and finite. Found '
          f'{self.noise_multiplier}.'
      )
    bounded = self.clipping_norm < math.inf or not self.noise_multiplier
    if not (self.clipping_norm > 0 and bounded):
      raise ValueError(
          '`clipping_norm` must be positive, and finite where there is noise. Found'
          f' {self.clipping_norm}.'
      )
    if not 1 <= self.clients_per_round <= self.population:
      raise ValueError(
          '`clients_per_round` must be from 1 to `population`='
          f'{self.population}. Found {self.clients_per_round}.'
      )
    if self.rounds < 1:
      raise ValueError(f'`rounds` must be positive. Found {self.rounds}.')
    if not 0 < self.delta < 1:
      raise ValueError(f'`delta` must be in (0, 1). Found {self.delta}.')
    if self.sampling not in (POISSON, FIXED):
      raise ValueError(
          f'`sampling` must be one of {(POISSON, FIXED)}. Found {self.sampling!r}.'
      )
    if self.noise not in noise_lib.KINDS:
      raise ValueError(
          f'`noise` must be one of {noise_lib.KINDS}. Found {self.noise!r}.'
      )
    if self.seats is None:
      object.__setattr__(self, 'seats', self._default_seats())
    most = self.population if self.sampling == POISSON else self.clients_per_round
    if not self.clients_per_round <= self.seats <= most:
      raise ValueError(
          f'`seats` must be from `clients_per_round`={self.clients_per_round} to'
          f' {most} with {self.sampling} sampling. Found {self.seats}.'
      )
    if self.min_reporting is None:
      object.__setattr__(self, 'min_reporting', self.seats)
    if not 1 <= self.min_reporting <= self.seats:
      raise ValueError(
          f'`min_reporting` must be from 1 to `seats`={self.seats}. Found'
          f' {self.min_reporting}.'
      )
    if self.noise != noise_lib.GAUSSIAN:
      if self.num_values is None:
        raise ValueError(f'`num_values` must be set with `noise`={self.noise!r}.')
      if self.bits is None:
        object.__setattr__(self, 'bits', _DEFAULT_INTEGER_BITS)
      _ = self.lattice  # Raises now what it would raise later.

  def _default_seats(self) -> int:
    r = self.clients_per_round
    if self.sampling == FIXED:
      return r
    spread = _SPREAD if self.noise == noise_lib.GAUSSIAN else _INTEGER_NOISE_SPREAD
    return min(self.population, math.ceil(r + spread * math.sqrt(r)))

  @property
  def lattice(self) -> Optional[lattice_lib.Lattice]:
    """The integers that leave a client; None with noise in reals."""
    if self.noise == noise_lib.GAUSSIAN:
      return None
    return lattice_lib.Lattice(
        self.noise, self.num_values, self.bits, self.noise_multiplier,
        self.clients_per_round, self.seats, self.min_reporting, self.rotate,
    )

  @property
  def claim(self) -> str:
    """The tightest of `ACCOUNTINGS` that holds for this sampling and noise."""
    return f'{self.sampling}_{"pld" if self.lattice is None else "rdp"}'

  def holds(self, accounting: str) -> bool:
    """Whether an accounting is a guarantee for this sampling and noise."""
    how = ACCOUNTINGS[accounting]
    if accounting == 'paper' and self.seats < self.population:
      return False  # It knows nothing of truncation.
    return (
        how.sampling == self.sampling
        and how.guarantees
        and (how.any_noise or self.lattice is None)
    )

  def sampler(self, seed: Optional[int] = None) -> sampling_lib.Sampler:
    """The sampler that the claim is about; `seed` as `sampling.Sampler`'s."""
    if self.sampling == FIXED:
      return sampling_lib.FixedSampler(self.population, self.clients_per_round, seed)
    return sampling_lib.PoissonSampler(
        self.population, self.clients_per_round, self.seats, seed
    )

  def mechanism(self) -> dict[str, Any]:
    """The arguments of `FedSmpFactory` that make what the claim is about."""
    return dict(
        clients_per_round=self.clients_per_round,
        clipping_norm=None if math.isinf(self.clipping_norm) else self.clipping_norm,
        noise_multiplier=self.noise_multiplier,
        seats=self.seats,
        # Where all are to report, another number of participants is an error.
        min_reporting=self.min_reporting if self.min_reporting < self.seats else None,
        noise=self.noise,
        bits=self.bits,
        rotate=self.rotate,
    )

  def dp_event(self) -> dp_accounting.DpEvent:
    """All rounds, for the accountants of dp-accounting.

    For `POISSON` with its default adjacency. For `FIXED` with `REPLACE_ONE`, and
    sigma / 2, since it takes the multiplier relative to the sum's sensitivity, 2 C.

    Raises:
      ValueError: With integer noise, for which it has no event.
    """
    if self.lattice is not None:
      raise ValueError(f'`noise`={self.noise!r} has no event in dp-accounting.')
    n, r, sigma = self.population, self.clients_per_round, self.noise_multiplier
    if self.sampling == POISSON:
      one = dp_accounting.TruncatedSubsampledGaussianDpEvent(n, r / n, self.seats, sigma)
    else:
      one = dp_accounting.SampledWithoutReplacementDpEvent(
          n, r, dp_accounting.GaussianDpEvent(sigma / 2)
      )
    return dp_accounting.SelfComposedDpEvent(one, self.rounds)

  def epsilon(
      self, accounting: Optional[str] = None, rounds: Optional[int] = None
  ) -> float:
    """epsilon at `delta`; infinite if no finite one can be shown.

    Args:
      accounting: A key of `ACCOUNTINGS`; None: the claim's. One for another sampling
        gives what that sampling would have, with the same r and n.
      rounds: Rounds that were released, or begun; None: all.

    Returns:
      epsilon; 0 before the first round.

    Raises:
      ValueError: If there is no such accounting, or not for this noise.
    """
    return _epsilon(
        self, accounting or self.claim, self.rounds if rounds is None else rounds
    )

  def deltas(self, epsilons: Sequence[float]) -> np.ndarray:
    """delta of all rounds at each epsilon, at least 0, by PLD; truncation is left out."""
    name = f'{self.sampling}_pld'
    untruncated = self
    if self.sampling == POISSON:
      untruncated = dataclasses.replace(self, seats=self.population, min_reporting=None)
    step = privacy_loss.step_of(self.noise_multiplier / _SENSITIVITY[name])
    one = _ROUND_LOSS[name](untruncated, step)
    return np.array(privacy_loss.deltas(one, self.rounds, list(epsilons)))

  def with_noise_multiplier(self, noise_multiplier: float) -> 'PrivacySpec':
    return dataclasses.replace(self, noise_multiplier=noise_multiplier)

  def calibrated(self, epsilon: float, accounting: Optional[str] = None) -> 'PrivacySpec':
    """The same with the smallest sigma, to 6 digits, that spends at most `epsilon` in all rounds.

    Args:
      epsilon: The target, positive.
      accounting: A key of `ACCOUNTINGS`; None: the claim's.

    Raises:
      ValueError: If a number is out of its range, `accounting` is a lower bound, or no
        sigma up to 10^4 will do.
    """
    accounting = accounting or self.claim
    if not 0 < epsilon < math.inf:
      raise ValueError(f'`epsilon` must be positive and finite. Found {epsilon}.')
    if accounting in ACCOUNTINGS and not ACCOUNTINGS[accounting].guarantees:
      raise ValueError(
          f'`accounting`={accounting!r} is a lower bound of epsilon; noise that reaches'
          ' a target by it guarantees nothing. Choose another.'
      )

    def excess(log_sigma):
      spent = self.with_noise_multiplier(math.exp(log_sigma)).epsilon(accounting)
      return min(spent, 1e6) - epsilon

    low, high = map(math.log, _SIGMA_RANGE)
    if accounting in _ROUND_LOSS:
      # From an accounting that takes less time; far from its sigma a grid of losses is huge.
      near, by, factor = self, f'{ACCOUNTINGS[accounting].sampling}_rdp', 1.25
      if self.sampling == POISSON and self.seats < self.population:
        near = dataclasses.replace(self, seats=self.population, min_reporting=None)
        by, factor = accounting, 1.0001
      high = math.log(near.calibrated(epsilon, by).noise_multiplier)
      while excess(high) > 0 and high < math.log(_SIGMA_RANGE[1]):
        high += math.log(factor)
        factor **= 2
      low = high - math.log(factor)
      while excess(low) <= 0:
        low -= math.log(factor)
        factor **= 2
    if excess(high) > 0:
      raise ValueError(
          f'No noise multiplier up to {_SIGMA_RANGE[1]:g} reaches epsilon='
          f'{epsilon}; raise epsilon or delta, or run fewer rounds.'
      )
    if excess(low) <= 0:
      return self.with_noise_multiplier(_SIGMA_RANGE[0])
    root = optimize.brentq(excess, low, high, xtol=1e-7)
    # Rounded up: never less noise than the target asks for.
    sigma = math.exp(root)
    digits = 6 - math.ceil(math.log10(sigma))
    sigma = math.ceil(sigma * 10**digits) / 10**digits
    while excess(math.log(sigma)) > 0:
      sigma *= 1 + 1e-6
    return self.with_noise_multiplier(sigma)


@functools.lru_cache
def _epsilon(spec: PrivacySpec, accounting: str, rounds: int) -> float:
  return epsilon_of_runs([(spec, rounds)], accounting, spec.delta)


def default_delta(population: int) -> float:
  """n^-1.1, as in section 5 of the paper; 1/2 keeps n = 1 in the range of delta."""
  return min(population**-1.1, 0.5)


def epsilon_of_runs(
    runs: Sequence[tuple[PrivacySpec, int]], accounting: str, delta: float
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
  if accounting in _ROUND_LOSS:
    for spec, _ in runs:
      if spec.lattice is not None:
        raise ValueError(
            f'`accounting`={accounting!r} takes Gaussian noise. Found'
            f' {spec.noise!r}; choose one by Renyi DP.'
        )
    # Losses add up on one grid.
    step = max(
        privacy_loss.step_of(
            spec.noise_multiplier / _SENSITIVITY[accounting],
            lower=not ACCOUNTINGS[accounting].guarantees,
        )
        for spec, _ in runs
    )
    return privacy_loss.epsilon(
        [(_ROUND_LOSS[accounting](spec, step), rounds) for spec, rounds in runs], delta
    )
  if accounting == 'paper':
    orders = _PAPER_ORDERS
    divergence = sum(_gaussian_poisson(s, orders) * rounds for s, rounds in runs)
    return float(np.nanmin(divergence + math.log(1 / delta) / (np.array(orders) - 1)))
  integers = any(spec.lattice is not None for spec, _ in runs)
  orders = _INTEGER_ORDERS if integers else _ORDERS
  poisson = ACCOUNTINGS[accounting].sampling == POISSON
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


def _distance(spec: PrivacySpec, poisson: bool) -> float:
  """Total variation between a release and its model: no truncation, exact noise."""
  truncated = 0.0
  if poisson and spec.sampling == POISSON:
    truncated = stats.binom.sf(
        spec.seats, spec.population, spec.clients_per_round / spec.population
    )
  return truncated + (spec.lattice.statistical_distance if spec.lattice else 0.0)


@functools.lru_cache
def _gaussian_poisson(spec: PrivacySpec, orders: tuple) -> np.ndarray:
  event = dp_accounting.PoissonSampledDpEvent(
      spec.clients_per_round / spec.population,
      dp_accounting.GaussianDpEvent(spec.noise_multiplier),
  )
  return _divergence(orders, event)


@functools.lru_cache
def _poisson_rdp(spec: PrivacySpec, orders: tuple) -> np.ndarray:
  """Renyi DP of one round at the orders, but for truncation."""
  if spec.lattice is None:
    return _gaussian_poisson(spec, orders)
  rate = spec.clients_per_round / spec.population
  return renyi.poisson(spec.lattice.curve(moved=1), rate, orders)


@functools.lru_cache
def _fixed_rdp(spec: PrivacySpec, orders: tuple) -> np.ndarray:
  """Renyi DP of one round at the orders."""
  if spec.lattice is not None:
    rate = spec.clients_per_round / spec.population
    return renyi.fixed(spec.lattice.curve(moved=2), rate, orders)
  event = dp_accounting.GaussianDpEvent(spec.noise_multiplier / 2)
  if spec.clients_per_round < spec.population:
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        spec.population, spec.clients_per_round, event
    )
  return _divergence(orders, event, dp_accounting.NeighboringRelation.REPLACE_ONE)


def _divergence(orders, event, *relation) -> np.ndarray:
  accountant = rdp.RdpAccountant(orders, *relation).compose(event)
  return np.array(accountant.rdp)


# A round's privacy loss, from a specification and the grid's step.
_ROUND_LOSS = {
    'poisson_pld': lambda spec, step: privacy_loss.poisson(
        spec.noise_multiplier, spec.population, spec.clients_per_round,
        # For what Poisson sampling would give: no truncation.
        spec.seats if spec.sampling == POISSON else spec.population,
        step,
    ),
    'fixed_pld': lambda spec, step: privacy_loss.fixed(
        spec.noise_multiplier, spec.population, spec.clients_per_round, step
    ),
    'fixed_pld_lower': lambda spec, step: privacy_loss.fixed_lower(
        spec.noise_multiplier, spec.population, spec.clients_per_round, step
    ),
}
_SENSITIVITY = {'poisson_pld': 1, 'fixed_pld': 2, 'fixed_pld_lower': 2}


def theorem_1(spec: PrivacySpec) -> tuple[float, list[str]]:
  """The paper's Theorem 1, solved for epsilon, and which of its conditions fail.

  sigma^2 >= 7 q^2 T (epsilon + 2 log(1/delta)) / epsilon^2 for q = r/n, from the
  simplified bound of Lemma 5 (3.5 q^2 alpha / sigma^2 a round) at
  alpha = 1 + 2 log(1/delta) / epsilon. It samples exactly r of n clients, for which
  neighbours differ by one client replaced and a sum by 2 C, but takes C: to
  compare with, not to claim.

  Args:
    spec: sigma, r, n, T and delta.

  Returns:
    epsilon (infinite without noise), and a sentence for each condition that fails.
  """
  sigma, delta = spec.noise_multiplier, spec.delta
  if sigma == 0:
    return math.inf, ['sigma^2 >= 0.7']
  rate = spec.clients_per_round / spec.population
  scale, log_delta = 7 * rate**2 * spec.rounds / sigma**2, math.log(1 / delta)
  epsilon = (scale + math.sqrt(scale**2 + 8 * scale * log_delta)) / 2
  alpha = 1 + 2 * log_delta / epsilon
  most = 1 + 2 / 3 * sigma**2 * math.log(1 / (rate * alpha * (1 + sigma**2)))
  unmet = []
  if epsilon >= 2 * log_delta:
    unmet.append(f'epsilon < 2 log(1/delta) = {2 * log_delta:.4g}')
  if sigma**2 < 0.7:
    unmet.append(f'sigma^2 = {sigma**2:.4g} >= 0.7')
  if alpha > most:
    unmet.append(
        f'alpha = {alpha:.4g} <= 1 + (2/3) sigma^2 log(1 / (q alpha (1 + sigma^2)))'
        f' = {most:.4g}'
    )
  return epsilon, unmet
