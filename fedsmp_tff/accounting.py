"""Epsilon from a run's numbers and back, each figure with the assumption it rests on.

Every round releases a sum over r sampled clients of vectors clipped to C, plus
Gaussian noise of standard deviation C sigma (`FedSmpFactory`); k and d do not
enter. What that guarantees depends on how the r clients are sampled and on what
'one client more or less' means:

  name        sampling            adjacency           sum's sensitivity
  paper       Poisson, rate r/n   add or remove one   C
  poisson     Poisson, rate r/n   add or remove one   C
  fixed_size  exactly r of n,     replace one         2 C
              no replacement

`paper` is the paper's own accounting (Renyi DP, conversion of Lemma 2), which
reproduces its tables. `poisson` is the same Renyi DP with the tighter conversion of
dp-accounting (Canonne, Kamath, Steinke 2020). `fixed_size` is the bound of Wang,
Balle, Kasiviswanathan (2019), Theorem 9, at noise multiplier sigma / 2: replacing a
client moves a sum by up to 2 C, and dp-accounting takes the multiplier relative to
that sensitivity.

Algorithm 1 samples exactly r of n clients, as this project's runs do today; so of
the three figures only `fixed_size` holds for them. All three take sigma C for the
noise of the sum in real arithmetic, and honest clients that all report.

>>> spending = Spending(1.4, clients_per_round=100, population=6000, delta=6000**-1.1)
>>> {name: round(spending.epsilon(name, rounds=180), 3) for name in ACCOUNTINGS}
{'fixed_size': 5.352, 'poisson': 0.744, 'paper': 1.008}
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import optimize

_ORDERS = tuple([1 + x / 10 for x in range(1, 100)] + list(range(12, 64))) + (
    80, 96, 128, 192, 256, 384, 512, 1024
)
# The orders of Opacus 0.x, which the paper used.
_PAPER_ORDERS = _ORDERS[:151]
_SIGMA_RANGE = (1e-2, 1e4)


class Accounting(NamedTuple):
  """One way to state epsilon, and what it takes for granted."""

  title: str
  assumption: str


ACCOUNTINGS = {
    'fixed_size': Accounting(
        'RDP, exactly r of n clients a round, without replacement',
        'replace-one adjacency, sensitivity 2C',
    ),
    'poisson': Accounting(
        'RDP, Poisson sampling at rate r/n',
        'add-or-remove-one adjacency, sensitivity C',
    ),
    'paper': Accounting(
        "the paper's: RDP, Poisson sampling at rate r/n, classic conversion",
        'add-or-remove-one adjacency, sensitivity C',
    ),
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
    ValueError: If a number is out of its range or no sigma up to 10^4 will do.
  """
  if not 0 < epsilon < math.inf:
    raise ValueError(f'`epsilon` must be positive and finite. Found {epsilon}.')

  def excess(log_sigma):
    spending = Spending(
        math.exp(log_sigma), clients_per_round, population, delta
    )
    spent = spending.epsilon(accounting, rounds)
    return min(spent, 1e6) - epsilon

  low, high = map(math.log, _SIGMA_RANGE)
  if excess(high) > 0:
    raise ValueError(
        f'No noise multiplier up to {_SIGMA_RANGE[1]:g} reaches epsilon='
        f'{epsilon}; raise epsilon or delta, or run fewer rounds.'
    )
  if excess(low) <= 0:
    return _SIGMA_RANGE[0]
  root = optimize.brentq(excess, low, high, xtol=1e-9)
  # Rounded up: never less noise than the target asks for.
  sigma = math.exp(root)
  digits = 6 - math.ceil(math.log10(sigma))
  sigma = math.ceil(sigma * 10**digits) / 10**digits
  while excess(math.log(sigma)) > 0:
    sigma *= 1 + 1e-6
  return sigma
