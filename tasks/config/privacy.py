"""Flags of sampling, noise and accounting, and the `PrivacySpec` that they make with the data."""

import dataclasses
import math
from typing import Any, Optional

from absl import flags

from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.privacy import sampling
from fedsmp_tff.privacy import spec as spec_lib
from tasks import errors

_EPSILON = flags.DEFINE_float(
    'epsilon', None,
    'Instead of --noise_multiplier: the smallest sigma that spends at most this'
    ' epsilon over all rounds, by --accounting.',
)
_ACCOUNTING = flags.DEFINE_enum(
    'accounting', None, ['pld', 'rdp', 'paper'],
    'What --epsilon is measured in, for --sampling: privacy loss distributions, Renyi'
    ' DP, or as the paper does (default: the tightest that holds: pld, with integer'
    ' noise rdp).',
)
_DELTA = flags.DEFINE_float(
    'delta', None, 'delta, in (0, 1) (default: n^-1.1, n as in --population).'
)
_SAMPLING = flags.DEFINE_enum(
    'sampling', None, [sampling.POISSON, sampling.FIXED],
    'poisson: each client with probability r/n, neighbours differ by one client added'
    ' or removed. fixed: exactly r clients, as in Algorithm 1, neighbours by one client'
    ' replaced, which takes twice the noise or more for the same epsilon (default:'
    ' poisson; fixed for fedavg*).',
)
_SEATS = flags.DEFINE_integer(
    'seats', None,
    'With --sampling=poisson: participants of a round; empty seats send noise alone'
    ' (default: five standard deviations above r: 150 for 100; seven with integer noise).',
)
_NOISE = flags.DEFINE_enum(
    'noise', noise_lib.GAUSSIAN, list(noise_lib.KINDS),
    'gaussian: in reals, then 32-bit integers. discrete_gaussian, skellam: integers modulo'
    ' 2^--bits, whose guarantee rests on no floating point.',
)
_BITS = flags.DEFINE_integer(
    'bits', None,
    'Bits of an encoded client value (default: as many as let a sum over all seats'
    ' fit in int32; more than that doubles the uplink. With integer noise: 16).',
)
_ROTATE = flags.DEFINE_boolean(
    'rotate', True,
    'With integer noise: rotate the k values at random, so that no sum is large.',
)
_DROPOUT = flags.DEFINE_float(
    'dropout', 0.0,
    'Simulation: the probability that a participant trains and never reports.',
)
_MIN_REPORTING = flags.DEFINE_integer(
    'min_reporting', None,
    'The fewest participants whose sum is released, for which noise shares are sized'
    ' (default: all seats; with --dropout, four standard deviations below what is'
    ' expected). A round with fewer counts, and changes nothing.',
)
_CLIP_QUANTILE = flags.DEFINE_float(
    'clip_quantile', None,
    'Adaptive clipping: C starts at --clip and follows this quantile of the norms, in'
    ' (0, 1), estimated within epsilon (default: C stays).',
)
_CLIENT_METRICS = flags.DEFINE_enum(
    'client_metrics', 'none', ['none', 'exact'],
    'exact: sums of clients that were clipped, non-finite or out of range, as columns'
    ' exact_*. They are OUTSIDE the guarantee: keep them to yourself.',
)
_ALL = (
    _SAMPLING, _SEATS, _NOISE, _BITS, _ROTATE, _EPSILON, _ACCOUNTING, _DELTA,
    _CLIP_QUANTILE, _MIN_REPORTING, _DROPOUT, _CLIENT_METRICS,
)
NAMES = tuple(holder.name for holder in _ALL)
# Arguments of the library that are flags of the same name.
_ARGUMENTS = (*NAMES, 'noise_multiplier', 'clients_per_round', 'population', 'rounds')


def from_flags(private: bool) -> dict[str, Any]:
  """The flags' values by name, as `RunSettings` has them.

  Args:
    private: Whether the algorithm clips and adds noise.
  """
  values = {holder.name: holder.value for holder in _ALL}
  if values['sampling'] is None:
    values['sampling'] = sampling.POISSON if private else sampling.FIXED
  return values


def specs(
    settings: Any, num_clients: int, num_kept: int
) -> tuple[spec_lib.PrivacySpec, Optional[spec_lib.PrivacySpec]]:
  """What a run samples, adds and claims.

  Args:
    settings: The run's `RunSettings`.
    num_clients: In the data.
    num_kept: k.

  Returns:
    The specification with the data's clients, from which sampler, noise and epsilon come;
    and one with --population, if that is another, for a HYPOTHETICAL epsilon. Without
    privacy, clipping and noise are none.

  Raises:
    InputError: If a flag is out of range, or no noise reaches --epsilon.
  """
  s = settings
  private = s.clip is not None
  population = s.population or num_clients
  try:
    real = spec_lib.PrivacySpec(
        population=num_clients,
        clients_per_round=s.clients_per_round,
        rounds=s.rounds,
        noise_multiplier=s.noise_multiplier or 0.0,
        clipping_norm=s.clip if private else math.inf,
        delta=spec_lib.default_delta(population) if s.delta is None else s.delta,
        sampling=s.sampling,
        seats=s.seats,
        min_reporting=s.min_reporting,
        noise=s.noise if private else noise_lib.GAUSSIAN,
        bits=s.bits,
        rotate=s.rotate,
        num_values=(
            # The vote of adaptive clipping is one more value.
            num_kept + (s.clip_quantile is not None)
            if private and s.noise != noise_lib.GAUSSIAN
            else None
        ),
    )
    if s.min_reporting is None and s.dropout:
      real = dataclasses.replace(
          real, min_reporting=_expected_to_report(real.seats, s.dropout)
      )
    claimed = dataclasses.replace(real, population=population)
    if s.epsilon is not None:
      name = s.accounting and (
          'paper' if s.accounting == 'paper' else f'{s.sampling}_{s.accounting}'
      )
      claimed = claimed.calibrated(s.epsilon, name)
      real = real.with_noise_multiplier(claimed.noise_multiplier)
    if private:
      claimed.epsilon(rounds=1)  # Raises what it can't account for.
  except ValueError as error:
    raise errors.as_flags(error, _ARGUMENTS) from None
  return real, claimed if population != num_clients else None


def _expected_to_report(seats: int, dropout: float) -> int:
  """So few report with probability 3e-5."""
  expected = seats * (1 - dropout)
  return max(1, math.floor(expected - 4 * math.sqrt(expected * dropout)))
