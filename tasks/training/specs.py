"""Turns a run's settings into the `PrivacySpec` that it claims. Without TensorFlow."""

import dataclasses
import math
from typing import Optional

from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import datasets
from tasks import errors
from tasks.config import options
from tasks.config import settings as settings_lib


def build(
    settings: settings_lib.RunSettings, num_clients: int, num_kept: int
) -> tuple[spec_lib.PrivacySpec, Optional[spec_lib.PrivacySpec]]:
  """Returns what a run samples, adds and claims.

  Args:
    settings: The run's settings.
    num_clients: The number of clients in the data.
    num_kept: k.

  Returns:
    The specification for the data's clients, from which sampler, noise and epsilon come;
    and one for --population, if that differs, for a HYPOTHETICAL epsilon. Without
    privacy, they neither clip nor add noise.

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
        rounds=max(s.rounds, 1),  # Without clients there are none.
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
    name = s.accounting and (
        'paper' if s.accounting == 'paper' else f'{s.sampling}_{s.accounting}'
    )
    claimed = dataclasses.replace(real, population=population)
    if s.epsilon is not None:
      claimed = claimed.calibrated(s.epsilon, name)
      real = real.with_noise_multiplier(claimed.noise_multiplier)
    if private:
      claimed.epsilon(rounds=1)  # Raises what it can't account for.
  except ValueError as error:
    raise errors.as_flags(error, options.options_of(settings_lib.RunSettings)) from None
  return real, claimed if population != num_clients else None


def account_ahead(settings: settings_lib.RunSettings) -> None:
  """Computes what epsilon a run will state, whose figures `accounting` then remembers.

  For a thread beside the import of TensorFlow: privacy loss distributions of 1,000 rounds take two
  seconds. What is wrong with the settings is for the run itself to find.

  Args:
    settings: The run's settings; the task's own flags are set.
  """
  if settings.clip is None or settings.noise != noise_lib.GAUSSIAN:
    return  # Nothing to account for, or it needs the number of coordinates.
  task = datasets.TASKS[settings.task]
  try:
    num_clients = task.num_clients()
    if num_clients is None and not task.loads_alone():
      return  # TensorFlow has to be set up before it reads data.
    if num_clients is None:
      data = task.load(0, settings.public_examples or 0, settings.held_out or 0)
      num_clients = len(data.clients)
    spec, hypothetical = build(settings, num_clients, num_kept=1)
    for one in (spec, hypothetical):
      if one is not None:
        one.epsilon(spec.claim)
  except Exception:  # pylint: disable=broad-exception-caught
    return


def _expected_to_report(seats: int, dropout: float) -> int:
  """The number below which reports fall with probability 3e-5."""
  expected = seats * (1 - dropout)
  return max(1, math.floor(expected - 4 * math.sqrt(expected * dropout)))
