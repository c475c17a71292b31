"""Epsilon from a run's numbers and back, each figure with the assumption it rests on.

Every round releases a sum over r sampled clients of vectors clipped to C, plus
Gaussian noise of standard deviation C sigma (`FedSmpFactory`); k and d do not
enter. What that guarantees depends on how the r clients are sampled and on what
'one client more or less' means:

  name              sampling            adjacency           sum's sensitivity
  poisson_pld       Poisson, rate r/n   add or remove one   C
  poisson           Poisson, rate r/n   add or remove one   C
  fixed_size_pld    exactly r of n,     replace one         2 C
                    no replacement
  fixed_size        the same            replace one         2 C
  fixed_size_lower  the same            replace one         2 C
  paper             Poisson, rate r/n   add or remove one   C

`*_pld` are composed privacy loss distributions; `privacy_loss` says which and why, and
that `fixed_size_lower` is a LOWER bound: no accountant of that sampling may say less.
`poisson` is Renyi DP with the conversion of Canonne, Kamath, Steinke (2020).
`fixed_size` is the bound of Wang, Balle, Kasiviswanathan (2019), Theorem 9, at
noise multiplier sigma / 2: replacing a client moves a sum by up to 2 C, and
dp-accounting takes the multiplier relative to that sensitivity. `paper` is the paper's
own accounting (Renyi DP, conversion of Lemma 2), which reproduces its tables.

Algorithm 1 samples exactly r of n clients, as this project's runs do today; so of
the six figures only `fixed_size_pld` and `fixed_size` hold for them. All take sigma C
for the noise of the sum in real arithmetic, and honest clients that all report.

>>> spending = Spending(1.4, clients_per_round=100, population=6000, delta=6000**-1.1)
>>> {name: round(spending.epsilon(name, rounds=180), 3) for name in ACCOUNTINGS
...  if name != 'fixed_size_lower'}  # That one is on another grid, and slower.
{'poisson_pld': 0.63, 'poisson': 0.744, 'fixed_size_pld': 3.743, 'fixed_size': 5.352, 'paper': 1.008}
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import optimize

from fedsmp_tff import privacy_loss

_ORDERS = tuple([1 + x / 10 for x in range(1, 100)] + list(range(12, 64))) + (
    80, 96, 128, 192, 256, 384, 512, 1024
)
# The orders of Opacus 0.x, which the paper used.
_PAPER_ORDERS = _ORDERS[:151]
_SIGMA_RANGE = (1e-2, 1e4)


class Accounting(NamedTuple):
  """One way to state epsilon, and what it takes for granted.

  Attributes:
    title: How it is computed.
    assumption: Adjacency and sensitivity.
    sampling: The sampling that it is for: 'poisson' or 'fixed_size'.
    guarantees: Whether it is an upper bound, and so a guarantee, for that sampling.
  """

  title: str
  assumption: str
  sampling: str
  guarantees: bool = True


_ONE_MORE = 'add-or-remove-one adjacency, sensitivity C'
_ANOTHER = 'replace-one adjacency, sensitivity 2C'

ACCOUNTINGS = {
    'poisson_pld': Accounting(
        'PLD, Poisson sampling at rate r/n', _ONE_MORE, 'poisson'
    ),
    'poisson': Accounting(
        'RDP, Poisson sampling at rate r/n', _ONE_MORE, 'poisson'
    ),
    'fixed_size_pld': Accounting(
        'PLD, exactly r of n clients a round, without replacement',
        _ANOTHER,
        'fixed_size',
    ),
    'fixed_size': Accounting(
        'RDP, exactly r of n clients a round, without replacement',
        _ANOTHER,
        'fixed_size',
    ),
    'fixed_size_lower': Accounting(
        'LOWER BOUND by PLD, exactly r of n clients a round, without replacement',
        _ANOTHER,
        'fixed_size',
        guarantees=False,
    ),
    'paper': Accounting(
        "the paper's: RDP, Poisson sampling at rate r/n, classic conversion",
        _ONE_MORE,
        'poisson',
    ),
}
# Those that a run reports after every round: what it guarantees first.
OF_EVERY_ROUND = ('fixed_size', 'poisson', 'paper')

# What computes an accounting from sigma, r/n, the rounds and delta.
_BY_PRIVACY_LOSS = {
    'poisson_pld': privacy_loss.poisson,
    'fixed_size_pld': privacy_loss.fixed_size,
    'fixed_size_lower': privacy_loss.fixed_size_lower,
}


@dataclasses.dataclass(frozen=True)
class Spending:
  """Privacy spent by a run, in (epsilon, delta), after any number of rounds.

  Attributes:
    noise_multiplier: sigma; 0 gives an infinite epsilon.
    clients_per_round: r.
    population: n >= r, the clients from which r are sampled every round.
    delta: In (0, 1).
  """

  noise_multiplier: float
  clients_per_round: int
  population: int
  delta: float

  def __post_init__(self):
    # Each test is of the form `not (good)`: NaN compares false.
    if not 0 <= self.noise_multiplier < math.inf:
      raise ValueError(
          '`noise_multiplier` must be non-negative and finite. Found '
          f'{self.noise_multiplier}.'
      )
    if not 1 <= self.clients_per_round <= self.population:
      raise ValueError(
          '`clients_per_round` must be from 1 to `population`='
          f'{self.population}. Found {self.clients_per_round}.'
      )
    if not 0 < self.delta < 1:
      raise ValueError(f'`delta` must be in (0, 1). Found {self.delta}.')

  def epsilon(self, accounting: str, rounds: int) -> float:
    """epsilon after `rounds` rounds; infinite if no finite one can be shown.

    Args:
      accounting: A key of `ACCOUNTINGS`.
      rounds: Rounds that were released, or begun.

    Returns:
      epsilon at `delta`; 0 before the first round.

    Raises:
      ValueError: If there is no such accounting.
    """
    if accounting not in ACCOUNTINGS:
      raise ValueError(
          f'`accounting` must be one of {list(ACCOUNTINGS)}. Found'
          f' {accounting!r}.'
      )
    if rounds == 0:
      return 0.0
    if self.noise_multiplier == 0:
      return math.inf
    if accounting in _BY_PRIVACY_LOSS:
      rate = self.clients_per_round / self.population
      return _BY_PRIVACY_LOSS[accounting](
          self.noise_multiplier, rate, rounds, self.delta
      )
    if accounting == 'paper':
      orders, of_round = _poisson_rdp(self, _PAPER_ORDERS)
      classic = of_round * rounds + math.log(1 / self.delta) / (orders - 1)
      return float(np.nanmin(classic))
    if accounting == 'poisson':
      orders, of_round = _poisson_rdp(self, _ORDERS)
    else:
      orders, of_round = _fixed_size_rdp(self)
    epsilon, _ = rdp.compute_epsilon(orders, of_round * rounds, self.delta)
    return float(epsilon)


def default_delta(population: int) -> float:
  """n^-1.1, as in section 5 of the paper; 1/2 keeps n = 1 in the range of delta."""
  return min(population**-1.1, 0.5)


@functools.lru_cache
def _poisson_rdp(spending: Spending, orders: tuple) -> tuple[np.ndarray, np.ndarray]:
  """Orders, and the Renyi DP of one round at them."""
  event = dp_accounting.PoissonSampledDpEvent(
      spending.clients_per_round / spending.population,
      dp_accounting.GaussianDpEvent(spending.noise_multiplier),
  )
  accountant = rdp.RdpAccountant(orders).compose(event)
  return np.array(orders), np.array(accountant.rdp)


@functools.lru_cache
def _fixed_size_rdp(spending: Spending) -> tuple[np.ndarray, np.ndarray]:
  """Orders, and the Renyi DP of one round at them."""
  gaussian = dp_accounting.GaussianDpEvent(spending.noise_multiplier / 2)
  event = dp_accounting.SampledWithoutReplacementDpEvent(
      spending.population, spending.clients_per_round, gaussian
  )
  if spending.clients_per_round == spending.population:
    event = gaussian  # Nothing is sampled.
  accountant = rdp.RdpAccountant(
      _ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE
  ).compose(event)
  return np.array(_ORDERS), np.array(accountant.rdp)


def calibrate_noise_multiplier(
    epsilon: float,
    accounting: str,
    clients_per_round: int,
    population: int,
    delta: float,
    rounds: int,
) -> float:
  """The smallest sigma, to 6 digits, that spends at most `epsilon`.

  Args:
    epsilon: The target, positive.
    accounting: A key of `ACCOUNTINGS`.
    clients_per_round: r.
    population: n.
    delta: In (0, 1).
    rounds: T.

  Returns:
    sigma.

  Raises:
    ValueError: If a number is out of its range, `accounting` is a lower bound, or no
      sigma up to 10^4 will do.
  """
  if not 0 < epsilon < math.inf:
    raise ValueError(f'`epsilon` must be positive and finite. Found {epsilon}.')
  if accounting in ACCOUNTINGS and not ACCOUNTINGS[accounting].guarantees:
    raise ValueError(
        f'`accounting`={accounting!r} is a lower bound of epsilon; noise that reaches'
        ' a target by it guarantees nothing. Choose another.'
    )

  def excess(log_sigma):
    spending = Spending(
        math.exp(log_sigma), clients_per_round, population, delta
    )
    spent = spending.epsilon(accounting, rounds)
    return min(spent, 1e6) - epsilon

  low, high = map(math.log, _SIGMA_RANGE)
  if accounting in _BY_PRIVACY_LOSS:
    # Renyi DP's sigma is enough, and near; far from it a grid of losses is huge.
    near = calibrate_noise_multiplier(
        epsilon,
        ACCOUNTINGS[accounting].sampling,
        clients_per_round,
        population,
        delta,
        rounds,
    )
    high = math.log(near)
    low = high - math.log(1.25)
    while excess(low) <= 0:
      low -= math.log(1.25)
  if excess(high) > 0:
    raise ValueError(
        f'No noise multiplier up to {_SIGMA_RANGE[1]:g} reaches epsilon='
        f'{epsilon}; raise epsilon or delta, or run fewer rounds.'
    )
  if excess(low) <= 0:
    return _SIGMA_RANGE[0]
  root = optimize.brentq(excess, low, high, xtol=1e-7)
  # Rounded up: never less noise than the target asks for.
  sigma = math.exp(root)
  digits = 6 - math.ceil(math.log10(sigma))
  sigma = math.ceil(sigma * 10**digits) / 10**digits
  while excess(math.log(sigma)) > 0:
    sigma *= 1 + 1e-6
  return sigma


def theorem_1(spending: Spending, rounds: int) -> tuple[float, list[str]]:
  """The paper's Theorem 1, solved for epsilon, and which of its conditions fail.

  sigma^2 >= 7 q^2 T (epsilon + 2 log(1/delta)) / epsilon^2 for q = r/n, from the
  simplified bound of Lemma 5 (3.5 q^2 alpha / sigma^2 a round) at
  alpha = 1 + 2 log(1/delta) / epsilon. It samples exactly r of n clients, for which
  neighbours differ by one client replaced and a sum by 2 C, but takes C: to
  compare with, not to claim.

  Args:
    spending: sigma, r, n and delta.
    rounds: T.

  Returns:
    epsilon (infinite without noise), and a sentence for each condition that fails.
  """
  sigma, delta = spending.noise_multiplier, spending.delta
  if sigma == 0:
    return math.inf, ['sigma^2 >= 0.7']
  rate = spending.clients_per_round / spending.population
  scale, log_delta = 7 * rate**2 * rounds / sigma**2, math.log(1 / delta)
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
