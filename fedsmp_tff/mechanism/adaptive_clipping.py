"""Adaptive clipping: C follows a quantile of the clients' norms, estimated privately."""

import dataclasses
import math
from typing import Any

# Of the noise on the votes, relative to the clients of a round (Andrew et al. 2021).
_VOTES_STDDEV = 1 / 20
# At most this part of a vector's length is the vote.
_MOST_WEIGHT = 0.5


@dataclasses.dataclass(frozen=True)
class AdaptiveClipping:
  """Moves C towards a quantile of the norms, as in Andrew et al. 2021, Algorithm 1.

  A client votes +1/2 if its norm was at most C, -1/2 if it was clipped, and 0 if it
  sent zero, as noise-only participants do. The vote is one more value of the client's
  private vector, so it gets noise and goes through the same secure sum, and what it costs
  is in epsilon: the values and the weighted vote together have norm at most 1 in
  units of C, and noise sigma. So values come with noise sigma / `value_weight`.

  C of the next round is a function of the noisy sum of votes, so it is public.

  Attributes:
    quantile: Of the norms, in (0, 1).
    learning_rate: Of the logarithm of C.
  """

  quantile: float = 0.5
  learning_rate: float = 0.2

  def __post_init__(self):
    for name, most in (('quantile', 1.0), ('learning_rate', math.inf)):
      value = getattr(self, name)
      if not 0 < value < most:
        raise ValueError(f'`{name}` must be in (0, {most:g}). Found {value}.')

  def vote_weight(self, noise_multiplier: float, clients_per_round: int) -> float:
    """What a vote is multiplied with, so that its sum's noise is r / 20, or less."""
    weight = noise_multiplier / (_VOTES_STDDEV * clients_per_round)
    return min(weight, _MOST_WEIGHT) if weight else _MOST_WEIGHT

  def value_weight(self, noise_multiplier: float, clients_per_round: int) -> float:
    """What a clipped vector of norm at most 1 is multiplied with."""
    vote = self.vote_weight(noise_multiplier, clients_per_round) / 2
    return math.sqrt(1 - vote**2)

  def log_factor(self, mean_vote: Any) -> Any:
    """Returns the logarithm of the next C over this one, from the noisy mean of the votes."""
    below = mean_vote + 0.5
    return -self.learning_rate * (below - self.quantile)
