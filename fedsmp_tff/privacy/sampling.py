"""Samples the participants of a round: each client with probability r/n, or exactly r of n."""

import abc
import math
from typing import Optional

import numpy as np

from fedsmp_tff import errors

POISSON, FIXED = 'poisson', 'fixed_size'
_SPREAD = 5  # Slots above r, in standard deviations of the number of sampled clients.


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
      num_slots: Number of slots, from r to n; None: five standard deviations above r, at most n.
      seed: See `Sampler`.

    Raises:
      ValueError: If a number is out of range.
    """
    super().__init__(population, clients_per_round, seed)
    if num_slots is None:
      num_slots = math.ceil(clients_per_round + _SPREAD * math.sqrt(clients_per_round))
      num_slots = min(population, num_slots)
    if not clients_per_round <= num_slots <= population:
      raise errors.ArgumentError(
          'num_slots',
          f'must be from the clients per round, {clients_per_round}, to the number of clients,'
          f' {population}. Found {num_slots}.',
      )
    self.num_slots = num_slots

  def _sample(self, rng: np.random.Generator) -> np.ndarray:
    # A binomial number of random clients has the distribution of one coin flip per client.
    num = rng.binomial(self.population, self.clients_per_round / self.population)
    clients = rng.choice(self.population, min(num, self.num_slots), replace=False)
    dummies = -1 - self.population - np.arange(self.num_slots - len(clients))
    return np.concatenate([clients, dummies])
