"""`PrivacySpec`: one object that makes sampler, noise and epsilon, so that they can't drift apart.

Algorithm 1 samples exactly r of n clients and accounts as if it were Poisson sampling. Here
the sampler is a choice, and the claim follows from it; `accounting` explains how.

>>> from fedsmp_tff.privacy import accounting
>>> spec = PrivacySpec(6000, 100, 180, 1.4, 1.0, delta=6000**-1.1, seats=6000)
>>> {name: round(spec.epsilon(name), 3) for name in accounting.ACCOUNTINGS}
{'poisson_pld': 0.63, 'fixed_pld': 3.743, 'poisson_rdp': 0.744, 'fixed_rdp': 5.352, 'paper': 1.008}
"""

import dataclasses
import functools
import math
from typing import Optional

import dp_accounting

from fedsmp_tff.mechanism import lattice as lattice_lib
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.privacy import accounting as accounting_lib
from fedsmp_tff.privacy import calibration
from fedsmp_tff.privacy import discrete_gaussian
from fedsmp_tff.privacy import sampling as sampling_lib

_SIGMA_RANGE = (1e-2, 1e4)
MOST_ROUNDS = 10**6
# Standard deviations of the number of sampled clients that have seats.
_SPREAD = 5


@dataclasses.dataclass(frozen=True)
class PrivacySpec:
  """The privacy of a run: makes its sampler, its mechanism and its epsilon.

  >>> spec = PrivacySpec(
  ...     population=6000, clients_per_round=100, rounds=180, noise_multiplier=1.4,
  ...     clipping_norm=1.0, delta=1e-5)
  >>> spec.claim, spec.sampler(seed=1).seats, spec.mechanism().seats
  ('poisson_pld', 150, 150)
  >>> fixed = dataclasses.replace(spec, sampling='fixed', seats=100, min_reporting=None)
  >>> fixed.claim, round(fixed.epsilon('fixed_rdp'), 1)
  ('fixed_pld', 6.3)

  The unit of privacy is a client with all of its data. With `POISSON` sampling neighbours
  differ by one client added or removed, with `FIXED` by one client replaced. The claim treats
  this specification, the masks and every round's release, and so every model, as public. It
  protects who took part, how many were sampled, and what a client computed.

  Attributes:
    population: n, the number of clients from which each round samples; of two neighbouring
      populations, that of the larger.
    clients_per_round: r, the number of sampled clients (expected, with `POISSON`); sums are
      divided by it.
    rounds: T, the number of rounds.
    noise_multiplier: sigma: the noise of a released sum has standard deviation C sigma
      at least; 0 gives an infinite epsilon.
    clipping_norm: C, the L2 norm to which a client's vector is clipped; infinite (no
      clipping) only without noise.
    delta: delta of the run, in (0, 1).
    sampling: `POISSON` (each client with probability r/n) or `FIXED` (exactly r of n).
    seats: Participants of a round, each with a share of the noise. `POISSON`: as many as
      five standard deviations above r need (150 for r = 100); empty seats go to noise-only participants. `FIXED`: r.
    min_reporting: The fewest participants whose sum is released; noise shares are sized
      for it. None: all seats.
    noise: A kind of `noise.KINDS`.
    num_values: With integer noise: how many values a client sends: k, and one more for the
      vote of adaptive clipping. A round of `mechanism()` with another number is refused.
    bits: With integer noise: bits of a value; None: 16, or the least above it that will do
      (`lattice.default_bits`).
  """

  population: int
  clients_per_round: int
  rounds: int
  noise_multiplier: float
  clipping_norm: float
  delta: float
  sampling: str = sampling_lib.POISSON
  seats: Optional[int] = None
  min_reporting: Optional[int] = None
  noise: str = noise_lib.GAUSSIAN
  num_values: Optional[int] = None
  bits: Optional[int] = None

  def __post_init__(self):
    # Each check is of the form `not (good)`: NaN compares false.
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
    kinds = (sampling_lib.POISSON, sampling_lib.FIXED)
    if self.sampling not in kinds:
      raise ValueError(f'`sampling` must be one of {kinds}. Found {self.sampling!r}.')
    if self.seats is None:
      object.__setattr__(self, 'seats', self._default_seats())
    most = self.population if self.sampling == sampling_lib.POISSON else self.clients_per_round
    if not self.clients_per_round <= self.seats <= most:
      raise ValueError(
          f'`seats` must be from `clients_per_round`={self.clients_per_round} to'
          f' {most} with {self.sampling} sampling. Found {self.seats}.'
      )
    if self.min_reporting is None:
      object.__setattr__(self, 'min_reporting', self.seats)
    self.mechanism()  # Checks the rest.
    if self.noise != noise_lib.GAUSSIAN and self.num_values is None:
      raise ValueError(f'`num_values` must be set with `noise`={self.noise!r}.')
    _ = self.lattice  # Checks `bits`.

  def _default_seats(self) -> int:
    r = self.clients_per_round
    if self.sampling == sampling_lib.FIXED:
      return r
    return min(self.population, math.ceil(r + _SPREAD * math.sqrt(r)))

  def mechanism(self) -> mechanism_lib.Mechanism:
    """Returns the mechanism for which the claim is valid."""
    return mechanism_lib.Mechanism(
        clients_per_round=self.clients_per_round,
        clipping_norm=None if math.isinf(self.clipping_norm) else self.clipping_norm,
        noise_multiplier=self.noise_multiplier,
        seats=self.seats,
        # Where all are to report, another number of participants is an error.
        min_reporting=None if self.min_reporting == self.seats else self.min_reporting,
        noise=self.noise,
        bits=self.bits,
        num_values=None if self.noise == noise_lib.GAUSSIAN else self.num_values,
    )

  @property
  def lattice(self) -> Optional[lattice_lib.Lattice]:
    """The encoding of a client's integers; None with noise in reals."""
    if self.noise == noise_lib.GAUSSIAN:
      return None
    return self.mechanism().encoding(self.num_values)

  @property
  def round(self) -> accounting_lib.Round:
    """The numbers on which a round's guarantee depends."""
    return self.round_without_noise_of(0.0)

  def round_without_noise_of(self, colluding: float) -> accounting_lib.Round:
    """Returns the round if a share of the participants, in [0, 1), leaves out its noise.

    Variances of noise shares add up, of the `1 - colluding` that are left. Integer noise comes in
    whole shares, which stay as they are, as the encoding does.
    """
    sigma, distance = self.noise_multiplier * math.sqrt(1 - colluding), 0.0
    if self.noise != noise_lib.GAUSSIAN and self.noise_multiplier:
      # A share of 0.1 of 150 is 15: not one more for the rounding of floats.
      left = math.floor(self.min_reporting * (1 - colluding) + 1e-9)
      sigma, distance = discrete_gaussian.dominating(self.lattice, left)
    return accounting_lib.Round(
        self.sampling, self.population, self.clients_per_round, self.seats, sigma, distance
    )

  @property
  def claim(self) -> str:
    """The tightest of `accounting.ACCOUNTINGS` that is valid for this sampling."""
    return f'{self.sampling}_pld'

  def is_valid(self, accounting: str) -> bool:
    """Whether an accounting is a guarantee for this sampling and noise.

    Raises:
      ValueError: If there is no such accounting.
    """
    how = accounting_lib.named(accounting)
    if accounting == 'paper' and self.seats < self.population:
      return False  # It knows nothing of truncation.
    if accounting == 'paper' and self.noise != noise_lib.GAUSSIAN:
      return False  # Nor of integers.
    return how.sampling == self.sampling

  def sampler(self, seed: Optional[int] = None) -> sampling_lib.Sampler:
    """Returns the sampler for which the claim is valid; `seed`: see `sampling.Sampler`."""
    if self.sampling == sampling_lib.FIXED:
      return sampling_lib.FixedSampler(self.population, self.clients_per_round, seed)
    return sampling_lib.PoissonSampler(
        self.population, self.clients_per_round, self.seats, seed
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
    if self.sampling == sampling_lib.POISSON:
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

    The number of rounds, or a budget, must be fixed in advance: epsilon does not cover a number
    that was chosen by what earlier rounds released.

    Args:
      accounting: A key of `accounting.ACCOUNTINGS`; None: `claim`. An accounting for another
        sampling gives the epsilon of that sampling, with the same r and n.
      rounds: Number of rounds that were released, or begun; None: all.

    Returns:
      epsilon; 0 before the first round.

    Raises:
      ValueError: If there is no such accounting.
    """
    num = self.rounds if rounds is None else rounds
    return _epsilon(self.round, num, accounting or self.claim, self.delta)

  def without_truncation(self) -> 'PrivacySpec':
    """The same with seats for all clients that may be sampled."""
    if self.sampling == sampling_lib.FIXED or self.seats == self.population:
      return self
    return dataclasses.replace(self, seats=self.population, min_reporting=None)

  def with_noise_multiplier(self, noise_multiplier: float) -> 'PrivacySpec':
    """Returns the same with another sigma."""
    return dataclasses.replace(self, noise_multiplier=noise_multiplier)

  def calibrated(self, epsilon: float, accounting: Optional[str] = None) -> 'PrivacySpec':
    """Returns the specification with the smallest sigma, to 6 digits, within `epsilon`.

    >>> spec = PrivacySpec(
    ...     population=50, clients_per_round=50, rounds=10, noise_multiplier=1.0,
    ...     clipping_norm=1.0, delta=1e-3, sampling='fixed')
    >>> spec = spec.calibrated(epsilon=2.0, accounting='fixed_rdp')
    >>> round(spec.noise_multiplier, 1), round(spec.epsilon('fixed_rdp'), 3)
    (10.2, 2.0)

    Args:
      epsilon: The target for all rounds, positive.
      accounting: A key of `accounting.ACCOUNTINGS`; None: the claim of the result.

    Raises:
      ValueError: If a number is out of its range, or no sigma up to 10^4 will do.
    """
    accounting = self._target(epsilon, accounting)
    low, high = map(math.log, _SIGMA_RANGE)

    def spent(log_sigma):
      return self.with_noise_multiplier(math.exp(log_sigma)).epsilon(accounting)

    if accounting_lib.by_privacy_loss(accounting):
      # From an accounting that takes less time; far from its sigma a grid of losses is huge.
      near, by = self, f'{accounting_lib.ACCOUNTINGS[accounting].sampling}_rdp'
      factor = 1.25
      # Without truncation a lattice has a share for each of n clients, which is no run.
      if self.noise == noise_lib.GAUSSIAN and self != self.without_truncation():
        near, by, factor = self.without_truncation(), accounting, 1.0001
      high = math.log(near.calibrated(epsilon, by).noise_multiplier)
      while spent(high) > epsilon and high < math.log(_SIGMA_RANGE[1]):
        high += math.log(factor)
        factor **= 2
      low = high - math.log(factor)
      while spent(low) <= epsilon:
        low -= math.log(factor)
        factor **= 2
    if spent(high) > epsilon:
      raise ValueError(
          f'No noise multiplier up to {_SIGMA_RANGE[1]:g} reaches epsilon='
          f'{epsilon}; raise epsilon or delta, or run fewer rounds.'
      )
    if spent(low) <= epsilon:
      return self.with_noise_multiplier(_SIGMA_RANGE[0])
    sigma = math.exp(calibration.calibrate(spent, epsilon, low, high, tol=1e-7))
    # Rounded up: never less noise than the target asks for.
    digits = 6 - math.ceil(math.log10(sigma))
    sigma = math.ceil(sigma * 10**digits) / 10**digits
    while spent(math.log(sigma)) > epsilon:
      sigma *= 1 + 1e-6
    return self.with_noise_multiplier(sigma)

  def most_rounds(self, epsilon: float, accounting: Optional[str] = None) -> int:
    """Returns the most rounds, up to a million, that stay within `epsilon`.

    Args:
      epsilon: The target, positive.
      accounting: A key of `accounting.ACCOUNTINGS`; None: the claim's.

    Raises:
      ValueError: If `epsilon` is not positive and finite.
    """
    accounting = self._target(epsilon, accounting)
    low, high = 0, 1
    if self.epsilon(accounting, low) > epsilon:
      return low
    while self.epsilon(accounting, high) <= epsilon:
      if high == MOST_ROUNDS:
        return high
      low, high = high, min(2 * high, MOST_ROUNDS)
    return calibration.calibrate(
        lambda rounds: self.epsilon(accounting, rounds), epsilon, low, high, discrete=True
    )

  def _target(self, epsilon: float, accounting: Optional[str]) -> str:
    """Checks a target; returns the accounting that it is in."""
    if not 0 < epsilon < math.inf:
      raise ValueError(f'`epsilon` must be positive and finite. Found {epsilon}.')
    return accounting or self.claim


@functools.lru_cache
def _epsilon(
    one: accounting_lib.Round, rounds: int, accounting: str, delta: float
) -> float:
  return accounting_lib.epsilon([(one, rounds)], accounting, delta)


def default_delta(population: int) -> float:
  """n^-1.1, as in section 5 of the paper; 1/2 keeps n = 1 in the range of delta."""
  return min(population**-1.1, 0.5)
