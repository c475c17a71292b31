"""`PrivacySpec`: makes sampler, noise and epsilon from one object, so that they cannot drift apart.

Algorithm 1 samples exactly r of n clients and accounts for Poisson sampling. Here the sampler is
an option, and the accountant follows from it.

>>> from fedsmp_tff.privacy import accountants
>>> spec = PrivacySpec(6000, 100, 180, 1.4, 1.0, delta=6000**-1.1, num_slots=6000)
>>> for a in accountants.ACCOUNTANTS: print(f'{a.name:14} {spec.epsilon(a):.3f}')
poisson_pld    0.630
fixed_pld      3.743
poisson_rdp    0.744
fixed_rdp      5.352
allocation_pld 0.595
paper          1.008
"""

import dataclasses
import functools
import math
from typing import Any, Optional

import dp_accounting

from fedsmp_tff import errors
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import calibration
from fedsmp_tff.privacy import discrete_gaussian
from fedsmp_tff.privacy import round as round_lib
from fedsmp_tff.privacy import sampling as sampling_lib

_SIGMA_RANGE = (1e-2, 1e4)
_FIRST_SIGMA = 1.0
_INTEGERS = ('population', 'clients_per_round', 'rounds', 'num_slots', 'min_reports')


@dataclasses.dataclass(frozen=True)
class PrivacySpec:
  """Specifies the privacy of a run; makes its sampler, its mechanism and its epsilon.

  >>> spec = PrivacySpec(
  ...     population=6000, clients_per_round=100, rounds=180, noise_multiplier=1.4,
  ...     clipping_norm=1.0, delta=1e-5)
  >>> spec.accountant.name, spec.sampler(seed=1).num_slots, spec.mechanism().num_slots
  ('poisson_pld', 150, 150)

  The unit of privacy is a client with all of its data. Adjacent populations differ by one client
  added or removed with `POISSON` and `ALLOCATION`, by one client replaced with `FIXED`. The
  guarantee protects who took part, how many clients were sampled, and what a client computed. This
  specification, the masks, every round's release, and so every model are public; the draws of
  `sampler()` must stay secret.

  Attributes:
    population: n, number of clients to sample from, in the larger of two adjacent populations.
    clients_per_round: r, number of sampled clients (`POISSON`: expected), and the divisor of sums.
      With `ALLOCATION` n / B clients are expected, which is near r; r is the divisor all the same.
    rounds: T, the number of rounds.
    noise_multiplier: sigma; a released sum has noise stddev C sigma or more. 0: infinite epsilon.
    clipping_norm: C, the L2 norm to which a client's vector is clipped; None (no clipping) only
      without noise.
    delta: delta of the run, in (0, 1), at most 1/n; see `check_delta`.
    sampling: `POISSON` (each client with probability r/n), `FIXED` (exactly r of n) or `ALLOCATION`
      (each client in one secret round of each block of B rounds, where B is n/r, rounded).
    num_slots: Number of participants of a round, each with a noise share. None: with `POISSON` five
      standard deviations above r (150 for r = 100), with empty slots for dummy participants; with
      `ALLOCATION` some more (about 180), since overfull rounds cost more; with `FIXED` r.
    min_reports, noise: See `Mechanism`.
    allow_large_delta: Whether `delta` may be above 1/n, where a guarantee means little.

  Raises:
    ValueError: If a number is out of range, or two options exclude each other.
  """

  population: int
  clients_per_round: int
  rounds: int
  noise_multiplier: float
  clipping_norm: Optional[float]
  delta: float
  sampling: str = sampling_lib.POISSON
  num_slots: Optional[int] = None
  min_reports: Optional[int] = None
  noise: mechanism_lib.Noise = mechanism_lib.Gaussian()
  # It is no part of the guarantee, so that specifications with and without it are equal.
  allow_large_delta: bool = dataclasses.field(default=False, compare=False)

  def __post_init__(self):
    check, kinds = errors.check_value, sampling_lib.KINDS
    check(self.sampling in kinds, 'sampling', f'one of {kinds}', repr(self.sampling))
    errors.convert_integers(self, *_INTEGERS)
    for name in ('noise_multiplier', 'clipping_norm', 'delta'):
      value = getattr(self, name)
      if name == 'clipping_norm' and value is None:
        continue
      try:
        object.__setattr__(self, name, float(value))
      except (TypeError, ValueError):
        raise ValueError(f'`{name}` must be a number. Found {value}.') from None
    num_slots = self.sampler().num_slots  # Checks population, clients per round and slots.
    rule = f'the clients per round, {num_slots}, with fixed-size sampling'
    check(self.num_slots in (None, num_slots), 'num_slots', rule, self.num_slots)
    object.__setattr__(self, 'num_slots', num_slots)
    # Checks the mechanism's options.
    object.__setattr__(self, 'min_reports', self.mechanism().min_reports)
    check(0 < self.delta < 1, 'delta', 'in (0, 1)', self.delta)
    if not self.allow_large_delta:
      check_delta(self.delta, self.population)

  def sampler(self, seed: Optional[int] = None) -> sampling_lib.Sampler:
    """Returns the sampler for which epsilon is valid; `seed`: see `sampling.Sampler`."""
    if self.sampling == sampling_lib.FIXED:
      return sampling_lib.FixedSampler(self.population, self.clients_per_round, seed)
    is_allocation = self.sampling == sampling_lib.ALLOCATION
    kind = sampling_lib.AllocationSampler if is_allocation else sampling_lib.PoissonSampler
    return kind(self.population, self.clients_per_round, self.num_slots, seed)

  def mechanism(self) -> mechanism_lib.Mechanism:
    """Returns the mechanism for which epsilon is valid."""
    return mechanism_lib.Mechanism(
        clients_per_round=self.clients_per_round, clipping_norm=self.clipping_norm,
        noise_multiplier=self.noise_multiplier, num_slots=self.num_slots,
        min_reports=self.min_reports, noise=self.noise,
    )

  def record(self) -> dict[str, Any]:
    """Returns the attributes as they are in JSON files; see `ledger_fields`."""
    noise = {'noise': self.noise.name, 'num_values': self.noise.num_values, 'bits': self.noise.bits}
    return dataclasses.asdict(self) | noise

  @property
  def round(self) -> round_lib.Round:
    """Parameters of a round's guarantee."""
    return round_lib.Round(
        self.sampling, self.population, self.clients_per_round, self.num_slots,
        *discrete_gaussian.dominating_gaussian(self.mechanism()),
    )

  @property
  def neighboring_relation(self) -> dp_accounting.NeighboringRelation:
    """Which two populations the guarantee compares, in dp-accounting's words."""
    relations = dp_accounting.NeighboringRelation
    is_fixed = self.sampling == sampling_lib.FIXED
    return relations.REPLACE_ONE if is_fixed else relations.ADD_OR_REMOVE_ONE

  def dp_event(self, rounds: Optional[int] = None) -> dp_accounting.DpEvent:
    """Returns what the rounds release, for dp-accounting's own accountants.

    >>> spec = PrivacySpec(6000, 100, 180, 1.4, 1.0, delta=1e-5)
    >>> accountant = dp_accounting.pld.PLDAccountant(spec.neighboring_relation)
    >>> round(accountant.compose(spec.dp_event()).get_epsilon(spec.delta), 2)
    0.75
    >>> round(spec.epsilon(), 2)
    0.75

    Always pass `neighboring_relation`: with dp-accounting's default, epsilon of fixed-size rounds is
    too small. Its RDP accountant supports neither these rounds nor rounds with fewer slots than
    clients. If all clients take part in fixed-size rounds, dp-accounting's PLD accountant assumes twice the
    sensitivity, so its epsilon is larger than `epsilon()`.

    Args:
      rounds: Number of rounds that were started; None: all.

    Raises:
      ValueError: With integer noise or random allocation, which no event covers.
    """
    if self.sampling == sampling_lib.ALLOCATION:
      raise ValueError('No `DpEvent` covers random allocation. Use `epsilon`.')
    one, num = self.round, self.rounds if rounds is None else rounds
    if one.distance:
      raise ValueError(
          'No `DpEvent` covers integer noise, whose distance from a Gaussian is charged to delta.'
          ' Use `epsilon`, or Gaussian noise.'
      )
    # Replacing a client moves the sum by up to 2 C. See `pld` for the pair that dominates.
    sensitivity = 2 if self.sampling == sampling_lib.FIXED else 1
    event = dp_accounting.GaussianDpEvent(one.noise_multiplier / sensitivity)
    if self.sampling == sampling_lib.POISSON and self.num_slots < self.population:
      event = dp_accounting.TruncatedSubsampledGaussianDpEvent(
          self.population, one.sampling_rate, self.num_slots, one.noise_multiplier
      )
    elif self.clients_per_round < self.population:
      event = dp_accounting.PoissonSampledDpEvent(one.sampling_rate, event)
    return dp_accounting.SelfComposedDpEvent(event, num) if num else dp_accounting.NoOpDpEvent()

  @property
  def accountant(self) -> accountants.Accountant:
    """Accountant of smallest epsilon that is sound for these rounds."""
    return accountants.tightest_sound_accountant([(self.round, self.rounds)])

  def epsilon(
      self, accountant: Optional[accountants.Accountant] = None, rounds: Optional[int] = None
  ) -> float:
    """Returns epsilon at `delta`; 0 before the first round, infinite without a proof.

    With `ALLOCATION` it is a step function of the number of rounds: a block that has begun counts
    whole.

    The number of rounds, or a budget, must be fixed in advance: epsilon does not cover a choice of
    this number based on earlier releases.

    Args:
      accountant: The accountant; None: `self.accountant`. An accountant for another sampling
        gives the epsilon of that sampling, with the same r and n.
      rounds: Number of rounds that were started; None: all.
    """
    num = self.rounds if rounds is None else rounds
    return _epsilon(self.round, num, accountant or self.accountant, self.delta)

  @classmethod
  def for_epsilon(
      cls, epsilon: float, *, accountant: Optional[accountants.Accountant] = None, **fields: Any
  ) -> 'PrivacySpec':
    """Returns the specification with the smallest sigma, to 6 digits, within `epsilon`.

    With `ALLOCATION` sigma is up to a few times 1e-4 larger than that, so that the search ends soon.

    >>> spec = PrivacySpec.for_epsilon(
    ...     2.0, population=50, clients_per_round=50, rounds=10, clipping_norm=1.0, delta=1e-3,
    ...     sampling='fixed_size')
    >>> round(spec.noise_multiplier, 1), round(spec.epsilon(), 3)
    (9.1, 2.0)

    Args:
      epsilon: The target for all rounds, positive.
      accountant: The accountant; None: the result's own.
      **fields: All attributes of the specification, but for `noise_multiplier`.

    Raises:
      ValueError: If `epsilon` is not positive and finite, no sigma up to 10^4 reaches it, or a
        field is out of range.
    """
    _check_target(epsilon)
    # With the most noise, `bits` are too few only if they are for any noise.
    noisiest = cls(noise_multiplier=_SIGMA_RANGE[1], **fields)
    accountant = accountant or noisiest.accountant

    # The search tries values of sigma for which `bits` may be too few; the result is checked.
    gaussian = isinstance(noisiest.noise, mechanism_lib.Gaussian)
    tried = dataclasses.replace(noisiest, noise=mechanism_lib.Gaussian()) if gaussian else noisiest

    def epsilon_fn(sigma):
      try:
        spec = dataclasses.replace(tried, noise_multiplier=sigma)
      except ValueError:  # `bits` are too few for so little integer noise.
        return math.inf
      return spec.epsilon(accountant)

    # Each epsilon of an allocation takes seconds.
    tolerance = 1e-4 if accountant is accountants.ALLOCATION_PLD else 1e-8
    sigma = calibration.find_sigma(epsilon_fn, epsilon, _FIRST_SIGMA, *_SIGMA_RANGE, tolerance)
    if sigma == _SIGMA_RANGE[1] and epsilon_fn(sigma) > epsilon:
      more_bits = '' if gaussian or noisiest.noise.bits is None else ', raise `bits`'
      raise errors.ArgumentError(
          'epsilon',
          f'is out of reach: no noise multiplier up to {_SIGMA_RANGE[1]:g} reaches {epsilon}. Raise'
          f' epsilon or delta{more_bits}, or run fewer rounds.',
      )
    if sigma != _SIGMA_RANGE[0]:
      # Rounding up never gives less noise than the target needs.
      digits = 6 - math.ceil(math.log10(sigma))
      sigma = math.ceil(sigma * 10**digits) / 10**digits
      # With a coarse grid, epsilon is not quite monotone in sigma.
      excess = max(1e-6, tolerance)
      while epsilon_fn(sigma) > epsilon:
        sigma, excess = sigma * (1 + excess), 2 * excess
    return dataclasses.replace(noisiest, noise_multiplier=sigma)

  def max_rounds(self, epsilon: float, accountant: Optional[accountants.Accountant] = None) -> int:
    """Returns the largest number of rounds, up to a million, within `epsilon`.

    Raises:
      ValueError: If `epsilon` is not positive and finite.
    """
    _check_target(epsilon)
    return calibration.max_rounds(lambda rounds: self.epsilon(accountant, rounds), epsilon)


def _check_target(epsilon: float) -> None:
  errors.check_value(0 < epsilon < math.inf, 'epsilon', 'positive and finite', epsilon)


@functools.lru_cache
def _epsilon(
    round_params: round_lib.Round, rounds: int, accountant: accountants.Accountant, delta: float
) -> float:
  return accountant.epsilon([(round_params, rounds)], delta)


def check_delta(delta: float, population: int) -> None:
  """Raises ValueError if delta is above 1/n.

  Publishing the data of one client, drawn at random, is (0, 1/n)-DP.
  """
  if delta > 1 / population:
    raise errors.ArgumentError(
        'delta',
        f'must be at most 1/n = {1 / population:.3g} for n = {population:,} clients. Found'
        f" {delta:g}, with which publishing one random client's data whole would pass with epsilon"
        f' = 0. Set a smaller one, such as n^-1.1 = {default_delta(population):.2g}.',
    )


def default_delta(population: int) -> float:
  """Returns n^-1.1, as in section 5 of the paper, and at most 1/2, for n = 1."""
  return min(population**-1.1, 0.5)
