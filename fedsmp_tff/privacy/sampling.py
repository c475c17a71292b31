"""Samples the participants of a round: each client with probability r/n, or exactly r of n."""

import abc
import math
from typing import Optional

import numpy as np

POISSON, FIXED = 'poisson', 'fixed_size'
# Standard deviations of the number of sampled clients that have slots.
_SPREAD = 5


class Sampler(abc.ABC):
  """Fills the slots of a round with clients.

  With a seed, a draw is a function of the seed and the draw's number. Without one, each draw takes
  fresh entropy from the operating system: no draw is ever repeated, and no file has what it
  followed from.

  Attributes:
    population: n.
    clients_per_round: r.
    num_slots: Number of participants of every round.
    seeded: Whether its draws follow from a seed.
  """

  population: int
  clients_per_round: int
  num_slots: int
  seeded: bool

  def __init__(
      self, population: int, clients_per_round: int, seed: Optional[int] = None
  ):
    """Initializes the sampler.

    Args:
      population: n.
      clients_per_round: r, from 1 to n.
      seed: Not negative, for simulation only: whoever knows it knows who takes part. None: each
        draw is fresh.

    Raises:
      ValueError: If r is not from 1 to n, or `seed` is negative.
    """
    if not 1 <= clients_per_round <= population:
      raise ValueError(
          f'`clients_per_round` must be from 1 to `population`={population}.'
          f' Found {clients_per_round}.'
      )
    if seed is not None and seed < 0:
      raise ValueError(f'`seed` must not be negative. Found {seed}.')
    self.population = population
    self.clients_per_round = clients_per_round
    self.seeded = seed is not None
    self._seed = seed

  def sample(self, draw: int) -> np.ndarray:
    """The participants of a round: distinct numbers, int64[num_slots].

    Args:
      draw: Number of the draw, from 0; no effect without a seed. A round that is run again with
        fresh noise needs another draw: two releases on one sample of clients are not two
        independent rounds.

    Returns:
      Clients are numbers from 0 to n - 1; negative ones are noise-only participants,
      who have no data and send a zero update with their share of the noise.
    """
    return self._sample(np.random.default_rng([self._seed, draw] if self.seeded else None))

  @abc.abstractmethod
  def _sample(self, rng: np.random.Generator) -> np.ndarray:
    """See `sample`."""


class FixedSampler(Sampler):
  """Exactly r of n clients, without replacement: line 1 of Algorithm 1.

  >>> len(set(FixedSampler(population=1000, clients_per_round=4).sample(draw=0)))
  4
  """

  def __init__(
      self, population: int, clients_per_round: int, seed: Optional[int] = None
  ):
    """See `Sampler`."""
    super().__init__(population, clients_per_round, seed)
    self.num_slots = clients_per_round

  def _sample(self, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(self.population, self.clients_per_round, replace=False)


class PoissonSampler(Sampler):
  """Each client with probability r/n, independently; empty slots get noise-only participants.

  The number of participants is constant, so that their noise shares add up to the
  mechanism's noise however many clients were sampled, and nobody learns how many. If
  more were sampled than there are slots, a random subset of them takes part
  ("truncated Poisson sampling", arXiv 2508.15089), for which the accounting charges.

  >>> sampler = PoissonSampler(population=1000, clients_per_round=4, num_slots=8, seed=1)
  >>> participants = sampler.sample(draw=0)
  >>> len(participants), int(sum(participants < 0))  # Those below 0 send noise alone.
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
      num_slots: From r to n; None: five standard deviations above r, if n is no less.
      seed: See `Sampler`.

    Raises:
      ValueError: If a number is out of its range.
    """
    super().__init__(population, clients_per_round, seed)
    if num_slots is None:
      num_slots = math.ceil(clients_per_round + _SPREAD * math.sqrt(clients_per_round))
      num_slots = min(population, num_slots)
    if not clients_per_round <= num_slots <= population:
      raise ValueError(
          f'`num_slots` must be from `clients_per_round`={clients_per_round} to'
          f' `population`={population}. Found {num_slots}.'
      )
    self.num_slots = num_slots

  def _sample(self, rng: np.random.Generator) -> np.ndarray:
    # So many of n at random is the same as each of n with its own coin.
    num = rng.binomial(self.population, self.clients_per_round / self.population)
    clients = rng.choice(self.population, min(num, self.num_slots), replace=False)
    return np.concatenate([clients, -1 - np.arange(self.num_slots - len(clients))])
