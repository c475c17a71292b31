"""Adaptive clipping: C follows a quantile of the clients' norms, estimated privately."""

import dataclasses
import math
from typing import Any

from fedsmp_tff import errors

_VOTES_STDDEV = 1 / 20  # Noise stddev of the sum of votes, divided by r (Andrew et al. 2021).
_MAX_WEIGHT = 0.5


@dataclasses.dataclass(frozen=True)
class AdaptiveClipping:
  """Moves C towards a quantile of the norms, as in Andrew et al. 2021, Algorithm 1.

  A client votes +1/2 if its norm was at most C, -1/2 if it was clipped, and 0 if it sent zero, as
  dummy participants do. The vote is one more value of the client's private vector: it gets noise
  and is part of the secure sum, and epsilon includes its cost. In units of C, the values and the
  weighted vote together have norm at most 1, so that the values alone have noise multiplier
  sigma / `value_weight`. The next C is a function of the noisy sum of votes, so it is public.

  Attributes:
    quantile: Quantile of the clients' norms that C follows, in (0, 1).
    learning_rate: Step of the logarithm of C per round.
  """

  quantile: float = 0.5
  learning_rate: float = 0.2

  def __post_init__(self):
    for name, maximum in (('quantile', 1.0), ('learning_rate', math.inf)):
      value = getattr(self, name)
      errors.check_value(0 < value < maximum, name, f'in (0, {maximum:g})', value)

  def vote_weight(self, noise_multiplier: float, clients_per_round: int) -> float:
    """Returns the weight of a vote, for noise of stddev max(r / 20, 2 sigma) in the vote sum."""
    weight = noise_multiplier / (_VOTES_STDDEV * clients_per_round)
    return min(weight, _MAX_WEIGHT) if weight else _MAX_WEIGHT

  def value_weight(self, noise_multiplier: float, clients_per_round: int) -> float:
    """Returns the factor on a clipped vector of norm at most 1 that leaves room for the vote."""
    vote = self.vote_weight(noise_multiplier, clients_per_round) / 2
    return math.sqrt(1 - vote**2)

  def log_factor(self, mean_vote: Any) -> Any:
    """Returns log(next C / C), from the noisy mean vote."""
    return -self.learning_rate * (mean_vote + 0.5 - self.quantile)
