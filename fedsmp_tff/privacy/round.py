"""`Round`: what accountants need to know of a round, or of a block of rounds."""

from collections.abc import Sequence
from typing import NamedTuple

from fedsmp_tff.privacy import divergences
from fedsmp_tff.privacy import sampling as sampling_lib

_MAX_NOISE = 1e6  # More is accounted as this much.


class Round(NamedTuple):
  """Parameters of a round's guarantee: a Gaussian sum, and the release's distance from it.

  Attributes:
    sampling: One of `sampling.KINDS`.
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
    """Probability that a client takes part in a round, if there are slots for all."""
    if self.sampling == sampling_lib.ALLOCATION:
      return 1 / self.rounds_per_block
    return self.clients_per_round / self.population

  @property
  def mean_clients(self) -> float:
    """Mean number of clients in a round."""
    if self.sampling == sampling_lib.ALLOCATION:
      return self.population / self.rounds_per_block
    return self.clients_per_round

  @property
  def rounds_per_block(self) -> int:
    """B of random allocation; 1 otherwise."""
    if self.sampling != sampling_lib.ALLOCATION:
      return 1
    return sampling_lib.rounds_per_block(self.population, self.clients_per_round)

  def next_block(self, num: int) -> int:
    """Returns the first number from `num` on that begins a block of an allocation."""
    return -(-num // self.rounds_per_block) * self.rounds_per_block

  @property
  def unsampled_noise_multiplier(self) -> float:
    """Noise stddev over the sensitivity if all clients take part, in a round or in a block."""
    # A client that is added where slots are limited may take the place of another: 2 C.
    is_added = self.sampling != sampling_lib.FIXED and self.num_slots == self.population
    return self.noise_multiplier / (1 if is_added else 2)

  def with_bounded_noise(self) -> 'Round':
    """Returns the round with no more noise than is accounted for."""
    return self._replace(noise_multiplier=min(self.noise_multiplier, _MAX_NOISE))

  def with_sampling(self, sampling: str) -> 'Round':
    """Returns the round with r clients by another sampling scheme, without truncation."""
    if sampling == self.sampling:
      return self
    num_slots = self.clients_per_round if sampling == sampling_lib.FIXED else self.population
    return self._replace(sampling=sampling, num_slots=num_slots)

  def without_truncation(self) -> 'Round':
    """Returns the round with slots for all clients; truncation becomes part of the distance."""
    if self.sampling == sampling_lib.FIXED or self.num_slots == self.population:
      return self
    overflow = divergences.probability_of_more(
        self.num_slots, self.population, self.sampling_rate
    )
    return self._replace(num_slots=self.population, distance=self.distance + overflow)

  def in_blocks(self, num: int) -> tuple['Round', int]:
    """Returns what accountants count for `num` rounds: the rounds, or an allocation's begun blocks.

    An allocation with slots has the same clients as one without, unless a round is overfull. So
    the distance of a block is at most the sum of its rounds' distances and overflow probabilities.
    """
    if self.sampling != sampling_lib.ALLOCATION:
      return self, num
    per_block, block = self.rounds_per_block, self.without_truncation()
    return block._replace(distance=per_block * block.distance), -(-num // per_block)


# Rounds on the same clients, each with the number of times that it was begun.
Rounds = Sequence[tuple[Round, int]]
