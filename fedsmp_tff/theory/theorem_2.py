"""Theorem 2: a bound on the gradients at Fed-SMP's weights, and the k that minimizes it.

The mean over rounds of ||grad f||^2 is at most the sum of three errors: of FedAvg (optimization),
of leaving out d - k coordinates (compression), and of the noise on k coordinates (privacy). With
larger k the second decreases and the third grows.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
from typing import Optional

import numpy as np

RANDK, TOPK = 'randk', 'topk'
GAMMA = 1 / 3  # The appendix's choice in the proof for top-k.
_RESOLUTION = 0.007  # Step of the search over log k.


def _check(values: object, positive: Sequence[str], minima: Mapping[str, float]) -> None:
  """Raises ValueError if an attribute is not positive, or below its minimum, or not finite."""
  for name in (*positive, *minima):
    value, minimum = getattr(values, name), minima.get(name)
    if not (value > 0 if minimum is None else value >= minimum) or value == math.inf:
      rule = 'greater than 0' if minimum is None else f'at least {minimum}'
      raise ValueError(f'`{name}` must be {rule} and finite. Found {value}.')


@dataclasses.dataclass(frozen=True)
class Constants:
  """The constants of the problem in Assumptions 1 to 3 of section 4.

  Attributes:
    smoothness: L: gradients of clients' losses are L-Lipschitz.
    gradient_variance: zeta^2: the variance of a minibatch's gradient around its client's, mean
      over clients.
    dissimilarity: beta^2 >= 1, of mean ||grad f_i||^2 <= beta^2 ||grad f||^2 + kappa^2.
    dissimilarity_offset: kappa^2.
    initial_gap: e_0 = f(theta^0) - f*.
  """

  smoothness: float
  gradient_variance: float
  dissimilarity: float
  dissimilarity_offset: float
  initial_gap: float

  def __post_init__(self):
    _check(self, ['smoothness'], {
        'gradient_variance': 0, 'dissimilarity': 1, 'dissimilarity_offset': 0, 'initial_gap': 0
    })


@dataclasses.dataclass(frozen=True)
class Training:
  """The numbers in Theorem 2 that a user sets for a run.

  Attributes:
    dim: d.
    learning_rate: eta_l, the learning rate of clients. The theorem has no momentum; with momentum
      mu a step is longer by 1/(1 - mu).
    local_steps: tau.
    rounds: T.
    clients_per_round: r.
    clipping_norm: C, which has no effect without noise.
    noise_multiplier: sigma; 0 without privacy.
  """

  dim: int
  learning_rate: float
  local_steps: int
  rounds: int
  clients_per_round: int
  clipping_norm: float
  noise_multiplier: float

  def __post_init__(self):
    _check(self, ['learning_rate', 'clipping_norm'], {
        'dim': 1, 'local_steps': 1, 'rounds': 1, 'clients_per_round': 1, 'noise_multiplier': 0
    })


@dataclasses.dataclass(frozen=True)
class Bound:
  """The three parts of the bound on the mean of ||grad f||^2."""

  optimization: float
  compression: float
  privacy: float

  @property
  def total(self) -> float:
    """Sum of the three parts."""
    return self.optimization + self.compression + self.privacy


def _phi(training: Training, sparsifier: str, num_kept: int, variance: Optional[float]) -> float:
  """Returns phi_k, with which E||S(x) - x||^2 <= phi_k ||x||^2; for errors see `bound`."""
  dim = training.dim
  if not 1 <= num_kept <= dim:
    raise ValueError(f'`num_kept` must be from 1 to dim={dim}. Found {num_kept}.')
  if sparsifier not in (RANDK, TOPK):
    raise ValueError(f'`sparsifier` must be {RANDK!r} or {TOPK!r}. Found {sparsifier!r}.')
  if variance is None:
    return dim / num_kept - 1 if sparsifier == RANDK else 1 - num_kept / dim
  if not 0 <= variance < math.inf:
    raise ValueError(f'`variance` must be at least 0 and finite. Found {variance}.')
  return variance


def bound(
    constants: Constants,
    training: Training,
    sparsifier: str,
    num_kept: int,
    variance: Optional[float] = None,
) -> Bound:
  """Computes the right side of Theorem 2.

  Args:
    constants: The constants of the problem.
    training: The numbers of the run.
    sparsifier: `RANDK` or `TOPK`.
    num_kept: k, from 1 to d.
    variance: phi_k, if it was measured; None: its largest value, d/k - 1 for rand-k (scaled by d/k)
      and 1 - k/d for top-k. The loss of a real update can be far smaller.

  Returns:
    The parts, which are a bound only without `violations`; otherwise, their shape over k is useful.

  Raises:
    ValueError: If an argument is out of range.
  """
  phi = _phi(training, sparsifier, num_kept, variance)
  step = training.learning_rate * training.local_steps
  kappa2, zeta2 = constants.dissimilarity_offset, constants.gradient_variance
  smoothness = constants.smoothness
  extra = 4 * zeta2 / GAMMA if sparsifier == TOPK else 0.0
  noise = training.clipping_norm * training.noise_multiplier / training.clients_per_round
  return Bound(
      optimization=8 * constants.initial_gap / (training.rounds * step)
      + 8 * step * smoothness * (3 * kappa2 + 2 * zeta2),
      compression=(8 * step * smoothness * (2 * kappa2 + zeta2) + extra) * phi,
      privacy=4 * smoothness * num_kept * noise**2 / step,
  )


def violations(
    constants: Constants,
    training: Training,
    sparsifier: str,
    num_kept: int,
    variance: Optional[float] = None,
) -> list[str]:
  """Returns a sentence for each violated condition of the theorem; for arguments see `bound`.

  One condition is not checked here: no update may be clipped (||update|| <= C).
  """
  sentences = []
  phi = _phi(training, sparsifier, num_kept, variance)
  slowness = training.local_steps * constants.smoothness
  beta2 = constants.dissimilarity
  largest = min(
      1 / (24 * slowness * (phi + 1) * beta2),
      1 / (4 * slowness * math.sqrt(4 * beta2 + 2)),
      1 / (12 * slowness),
  )
  if training.learning_rate > largest:
    sentences.append(
        f'the learning rate {training.learning_rate:g} is above {largest:.3g}, the maximum in'
        ' Theorem 2'
    )
  if sparsifier == TOPK and phi > GAMMA:
    sentences.append(
        f'phi_k = {phi:.3g} is above gamma = {GAMMA:.3g}, which the proof for top-k needs'
        ' (appendix; Theorem 2 does not state it)'
    )
  return sentences


def best_compression_ratio(
    constants: Constants,
    training: Training,
    sparsifier: str,
    variance: Optional[Callable[[int], float]] = None,
) -> float:
  """Returns the p = k/d at which the bound is smallest, to 0.7 %.

  For rand-k that is k = sqrt(A d / B), A = 8 eta tau L (2 kappa^2 + zeta^2) and
  B = 4 L C^2 sigma^2 / (eta tau r^2), if it is from 1 to d; L cancels out. For top-k the bound is
  linear in k if phi_k is: without a measured `variance` the answer is 1/d or 1.

  >>> constants = Constants(
  ...     smoothness=1.0, gradient_variance=0.1, dissimilarity=1.0, dissimilarity_offset=0.1,
  ...     initial_gap=2.0)
  >>> training = Training(
  ...     dim=100_000, learning_rate=0.01, local_steps=10, rounds=200, clients_per_round=100,
  ...     clipping_norm=1.0, noise_multiplier=1.4)
  >>> round(best_compression_ratio(constants, training, RANDK), 4)
  0.0175
  >>> for num_kept in (100, 1_750, 100_000):
  ...   parts = bound(constants, training, RANDK, num_kept)
  ...   print(f'{parts.optimization:.1f} + {parts.compression:.1f} + {parts.privacy:.1f}')
  1.2 + 239.8 + 0.8
  1.2 + 13.5 + 13.7
  1.2 + 0.0 + 784.0

  Args:
    constants: The constants of the problem.
    training: The numbers of the run.
    sparsifier: `RANDK` or `TOPK`.
    variance: phi_k as a function of k, if it was measured; see `bound`.
  """
  steps = math.ceil(math.log(training.dim) / _RESOLUTION) + 1
  candidates = np.unique(np.geomspace(1, training.dim, steps).round().astype(np.int64))
  totals = [
      bound(constants, training, sparsifier, k, variance and variance(k)).total
      for k in candidates.tolist()
  ]
  return int(candidates[int(np.argmin(totals))]) / training.dim
