"""Samples the participants of a round.

Each client takes part with probability r/n in each round (`POISSON`), exactly r of n do (`FIXED`),
or each takes part in exactly one secret round of each block of rounds (`ALLOCATION`).
"""

import abc
import math
from typing import Any, Optional

import numpy as np
from scipy import stats

from fedsmp_tff import errors

POISSON, FIXED, ALLOCATION = 'poisson', 'fixed_size', 'allocation'
KINDS = (POISSON, FIXED, ALLOCATION)
_SPREAD = 5  # Slots above r, in standard deviations of the number of sampled clients.
# Largest probability that a round of an allocation has more clients than slots, by default. Times
# 1 + e^epsilon it is charged to delta for each round. The charge is below 1 % of the default delta,
# n^-1.1, up to epsilon = 8 with 1,000 rounds and 10,000 clients.
_OVERFLOW = 1e-13


def rounds_per_block(population: int, clients_per_round: int) -> int:
  """Returns B, the number of rounds in a block of an allocation: n/r, rounded, at least 1.

  >>> rounds_per_block(population=6000, clients_per_round=100), rounds_per_block(1137, 100)
  (60, 11)
  """
  return max(1, (2 * population + clients_per_round) // (2 * clients_per_round))


class Sampler(abc.ABC):
  """Fills the slots of a round with clients.

  With a seed, a draw is a function of the seed and the draw's number. Without a seed, each draw
  takes fresh entropy from the operating system: no draw repeats, and no file stores its entropy.

  Attributes:
    population: n.
    clients_per_round: r.
    num_slots: Number of participants of every round.
    seeded: Whether draws follow from a seed.
  """

  def __init__(self, population: int, clients_per_round: int, seed: Optional[int] = None):
    """Initializes the sampler.

    Args:
      population: n.
      clients_per_round: r, from 1 to n.
      seed: Non-negative, for simulation only: it reveals who takes part. None: fresh draws.

    Raises:
      ValueError: If r is not from 1 to n, or `seed` is negative.
    """
    if not 1 <= clients_per_round <= population:
      raise errors.ArgumentError(
          'clients_per_round',
          f'must be from 1 to the number of clients, {population}. Found {clients_per_round}.',
      )
    if seed is not None and seed < 0:
      raise ValueError(f'`seed` must not be negative. Found {seed}.')
    self.population = population
    self.num_slots = self.clients_per_round = clients_per_round
    self.seeded = seed is not None
    self._seed = seed

  def sample(self, draw: int) -> np.ndarray:
    """Returns the participants of a round, int64[num_slots], all distinct.

    Args:
      draw: Number of the draw, from 0; no effect without a seed. A round that is repeated with
        fresh noise needs another draw: two releases on one sample of clients are not two
        independent rounds.

    Returns:
      Clients, from 0 to n - 1, and dummies, negative, without data, which send only a noise share.
      Dummies are below -n, so that `clients[number]` of a list of n clients raises an IndexError.
    """
    return self._sample(np.random.default_rng([self._seed, draw] if self.seeded else None))

  @abc.abstractmethod
  def _sample(self, rng: np.random.Generator) -> np.ndarray:
    """See `sample`."""


class FixedSampler(Sampler):
  """Samples exactly r of n clients, without replacement: line 1 of Algorithm 1.

  >>> len(set(FixedSampler(population=1000, clients_per_round=4).sample(draw=0)))
  4
  """

  def _sample(self, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(self.population, self.clients_per_round, replace=False)


class PoissonSampler(Sampler):
  """Samples each client with probability r/n, independently; dummies fill empty slots.

  The number of participants is constant, so that their noise shares add up to the mechanism's noise
  and the number of sampled clients stays hidden. If more clients were sampled than there are slots,
  a random subset of them takes part ("truncated Poisson sampling", arXiv 2508.15089), whose cost
  the sound accountants include.

  >>> sampler = PoissonSampler(population=1000, clients_per_round=4, num_slots=8, seed=1)
  >>> participants = sampler.sample(draw=0)
  >>> len(participants), int(sum(participants < 0))  # Dummies.
  (8, 4)
  >>> bool((sampler.sample(draw=0) == participants).all())
  True
  """

  def __init__(
      self,
      population: int,
      clients_per_round: int,
      num_slots: Optional[int] = None,
      seed: Optional[int] = None,
  ):
    """Initializes the sampler.

    Args:
      population: n.
      clients_per_round: r, the expected number of clients, from 1 to n.
      num_slots: Number of slots, from r to n; None: five standard deviations above r, at most n,
        or more of an allocation.
      seed: See `Sampler`.

    Raises:
      ValueError: If a number is out of range.
    """
    super().__init__(population, clients_per_round, seed)
    num_slots = self._default_slots() if num_slots is None else num_slots
    if not clients_per_round <= num_slots <= population:
      raise errors.ArgumentError(
          'num_slots',
          f'must be from the clients per round, {clients_per_round}, to the number of clients,'
          f' {population}. Found {num_slots}.',
      )
    self.num_slots = num_slots

  def _default_slots(self) -> int:
    spread = _SPREAD * math.sqrt(self.clients_per_round)
    return min(self.population, math.ceil(self.clients_per_round + spread))

  def _sample(self, rng: np.random.Generator) -> np.ndarray:
    # A binomial number of random clients has the distribution of one coin flip per client.
    num = rng.binomial(self.population, self.clients_per_round / self.population)
    return self._fill(rng.choice(self.population, min(num, self.num_slots), replace=False))

  def _fill(self, clients: np.ndarray) -> np.ndarray:
    """Returns the clients, and a dummy in each other slot."""
    dummies = -1 - self.population - np.arange(self.num_slots - len(clients))
    return np.concatenate([clients, dummies])


class AllocationSampler(PoissonSampler):
  """Assigns each client to one uniform round of each block of B rounds; B is n/r, rounded.

  Draw number d is round d mod B of block d // B. The mean number of clients in a round is n / B.
  As with Poisson sampling, dummies fill empty slots, and of more clients than slots a random subset
  takes part. The rounds of a client are independent of those of the others.

  Epsilon holds only if each assignment is secret and used once. Without a seed the sampler
  therefore keeps the present block in memory alone. A copy, or the sampler of a resumed run, does
  not know the block and begins another one, which counts (`Ledger.begin` gives its draws).

  >>> sampler = AllocationSampler(population=12, clients_per_round=4, num_slots=12, seed=1)
  >>> block = np.concatenate([sampler.sample(draw) for draw in range(3)])
  >>> sorted(block[block >= 0].tolist()) == [*range(12)]
  True

  By default there are so many slots that a round has more clients with a probability of at most
  1e-13.
  """

  _last, _block, _cohorts = -1, -1, None

  @property
  def rounds_per_block(self) -> int:
    """B."""
    return rounds_per_block(self.population, self.clients_per_round)

  def _default_slots(self) -> int:
    slots = int(stats.binom.isf(_OVERFLOW, self.population, 1 / self.rounds_per_block))
    return min(self.population, max(self.clients_per_round, slots))

  def sample(self, draw: int) -> np.ndarray:
    """Returns the participants of a round; see `Sampler.sample`.

    Args:
      draw: Number of the draw, from 0. Without a seed, it must be above that of every earlier draw,
        and a block begins with its first round.

    Raises:
      ValueError: If the draw would use a part of a block again, or without its beginning.
    """
    block, position = divmod(draw, self.rounds_per_block)
    if not self.seeded:
      if draw <= self._last or (position and block != self._block):
        raise ValueError(
            f'Draw {draw} is in a block of clients\' secret rounds that this sampler has not begun,'
            ' or has used up to here. A client would take part twice in a block that epsilon counts'
            ' once. Give the draws of `Ledger.begin`, which begins a block anew in a resumed run.'
        )
      self._last = draw
    if block != self._block:
      rng = np.random.default_rng([self._seed, block] if self.seeded else None)
      clients = rng.permutation(self.population)
      rounds = rng.integers(self.rounds_per_block, size=self.population)
      self._block = block
      self._cohorts = [clients[rounds == t] for t in range(self.rounds_per_block)]
    return self._fill(self._cohorts[position][: self.num_slots])

  def __getstate__(self) -> dict[str, Any]:
    # Copies and pickles have no block: two samplers with one would use each client twice.
    return {**self.__dict__, '_last': -1, '_block': -1, '_cohorts': None}
