"""Builds what a run's settings describe: model, sparsifier, privacy, aggregator, training."""

from collections.abc import Callable
import dataclasses
import math
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import client_training
from fedsmp_tff import private_evaluation
from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.post_processing import averaging
from fedsmp_tff.post_processing import base
from fedsmp_tff.privacy import spec as spec_lib
from fedsmp_tff.program import client_evaluation
from tasks import datasets
from tasks import errors
from tasks.config import options
from tasks.config import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.models import initializers
from tasks.training import seeds as seeds_lib

_CLIENTS_PER_PSEUDO_CLIENT = 20


def model(
    settings: settings_lib.RunSettings, seeds: seeds_lib.Seeds
) -> tff.learning.models.FunctionalModel:
  """The task's model, with the run's initial weights."""
  initializer = initializers.INITIALIZERS[settings.initializer](seeds.weights)
  return datasets.TASKS[settings.task].build_model(initializer)


def aggregator(
    settings: settings_lib.RunSettings,
    spec: spec_lib.PrivacySpec,
    kept: fedsmp_tff.Sparsifier,
) -> fedsmp_tff.FedSmpFactory:
  """Returns the run's masked private sum.

  Raises:
    InputError: If --bits is out of its range.
  """
  adaptive = None
  if settings.clip_quantile is not None:
    adaptive = fedsmp_tff.AdaptiveClipping(settings.clip_quantile)
  try:
    mechanism = dataclasses.replace(
        spec.mechanism(),
        adaptive_clipping=adaptive,
        clipping_schedule=clipping_schedule(settings, local_training(settings)),
        client_metrics=settings.client_metrics == 'exact',
    )
  except ValueError as error:  # Of the flags, only --bits is not checked yet.
    raise errors.InputError(f'--bits={settings.bits}: {error}') from None
  return fedsmp_tff.FedSmpFactory(
      kept, mechanism, post_processing=post_processing(settings)
  )


def num_kept(settings: settings_lib.RunSettings, dim: int) -> int:
  """k."""
  if settings_lib.ALGORITHMS[settings.algorithm].sparsifier is None:
    return dim
  return fedsmp_tff.RandK(settings.p, settings.k).num_kept(dim)


def sparsifier(
    settings: settings_lib.RunSettings, data: task_lib.TaskData
) -> fedsmp_tff.Sparsifier:
  """Returns the run's sparsifier.

  Raises:
    InputError: If the public data have too few examples for --public_clients.
  """
  kind = settings_lib.ALGORITHMS[settings.algorithm].sparsifier
  if kind is None:
    return fedsmp_tff.Dense()
  if kind == 'randk':
    return fedsmp_tff.RandK(settings.p, settings.k, mask_rounds=settings.mask_rounds)
  if kind == 'released':
    return fedsmp_tff.ReleasedTopK(
        settings.p, settings.k, mask_rounds=settings.mask_rounds,
        **_given(explore=settings.explore),
    )
  public = dict(
      public_examples=data.public,
      public_epochs=settings.public_epochs,
      public_steps=settings.public_steps,
      ahead=settings.public_update == 'ahead',
      mask_rounds=settings.mask_rounds,
      **_pseudo_clients(settings, data),
  )
  if settings.released_weight is not None:
    return fedsmp_tff.HybridTopK(
        settings.p, settings.k, released_weight=settings.released_weight, **public
    )
  return fedsmp_tff.TopK(settings.p, settings.k, **public)


def default_public_clients(clients_per_round: int) -> int:
  """Returns --public_clients where it is not given and the public examples are enough.

  A mask by more of them is hardly better. The share of the energy of the clients' mean update
  that it holds, on Fashion-MNIST at round 0: 63 % by 5, 67 % by 25, 70 % by the best mask, 27 %
  by the paper's; on Shakespeare at round 20: 89.6 % by 1, 90.3 % by 20, 95 % by the best, 71.5 % by
  the paper's.

  Args:
    clients_per_round: r.
  """
  return max(2, clients_per_round // _CLIENTS_PER_PSEUDO_CLIENT)


def _pseudo_clients(
    settings: settings_lib.RunSettings, data: task_lib.TaskData
) -> dict[str, int]:
  """What `TopK` takes for --public_clients; nothing for one training on all examples."""
  clients = settings.public_clients
  size = settings.public_client_examples or data.public_client_examples
  num_examples = len(data.public[0])
  if clients is None and not (settings.public_epochs or settings.public_steps):
    clients = min(default_public_clients(settings.clients_per_round), num_examples // size)
  if not clients:
    return {}
  if clients * size > num_examples:
    raise errors.InputError(
        f'--public_clients={clients} of {size} examples each need {clients * size} public'
        f' examples, and there are {num_examples}; lower it, or raise --public_examples.'
    )
  return dict(public_clients=clients, public_client_examples=size)


def local_training(
    settings: settings_lib.RunSettings,
) -> client_training.LocalTraining:
  """What clients do in a round."""

  def learning_rate(round_num):
    decays = tf.cast(
        round_num // settings.learning_rate_decay_rounds, tf.float32
    )
    return settings.learning_rate * settings.learning_rate_decay**decays

  return client_training.LocalTraining(
      tff.learning.optimizers.build_sgdm(
          settings.learning_rate, settings.momentum
      ),
      settings.batch_size,
      epochs=settings.local_epochs,
      steps=settings.local_steps,
      learning_rate_fn=learning_rate,
  )


def specs(
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
    if s.min_reporting is None:
      real = _sized_for_dropout(real, s.dropout)
    name = s.accounting and (
        'paper' if s.accounting == 'paper' else f'{s.sampling}_{s.accounting}'
    )
    evaluation = _evaluation_spec(settings, real, population, name)
    claimed = _of_population(dataclasses.replace(real, evaluation=evaluation), population)
    real = dataclasses.replace(real, evaluation=evaluation)
    if s.epsilon is not None:
      claimed = claimed.calibrated(s.epsilon, name)
      real = real.with_noise_multiplier(claimed.noise_multiplier)
    if private:
      claimed.epsilon(rounds=1)  # Raises what it can't account for.
  except ValueError as error:
    raise errors.as_flags(error, options.options_of(settings_lib.RunSettings)) from None
  return real, claimed if population != num_clients else None


def _evaluation_spec(
    settings: settings_lib.RunSettings,
    spec: spec_lib.PrivacySpec,
    population: int,
    accounting: Optional[str],
) -> Optional[spec_lib.PrivacySpec]:
  """Returns what evaluations on clients sample and add; None if there are none.

  Args:
    settings: The run's settings.
    spec: That of its rounds.
    population: The number of clients that --epsilon is about.
    accounting: How --epsilon is measured; None: by the claim.
  """
  s = settings
  if s.client_evaluation == 'none':
    return None
  num = client_evaluation.num_evaluations(s.rounds, s.rounds_per_client_evaluation)
  sigma = s.evaluation_noise_multiplier
  if sigma is None and s.epsilon is not None:
    together = dataclasses.replace(_of_population(spec, population), rounds=s.rounds + num)
    sigma = together.calibrated(s.epsilon, accounting).noise_multiplier
  return _sized_for_dropout(
      dataclasses.replace(
          spec,
          clients_per_round=s.evaluation_clients_per_round,
          rounds=num,
          noise_multiplier=spec.noise_multiplier if sigma is None else sigma,
          clipping_norm=1.0,
          seats=None,
          min_reporting=None,
          num_values=None if spec.num_values is None else private_evaluation.NUM_VALUES,
      ),
      s.dropout,
  )


def _sized_for_dropout(spec: spec_lib.PrivacySpec, dropout: float) -> spec_lib.PrivacySpec:
  if not dropout:
    return spec
  return dataclasses.replace(spec, min_reporting=_expected_to_report(spec.seats, dropout))


def _of_population(spec: spec_lib.PrivacySpec, population: int) -> spec_lib.PrivacySpec:
  evaluation = spec.evaluation and _of_population(spec.evaluation, population)
  return dataclasses.replace(spec, population=population, evaluation=evaluation)


def post_processing(settings: settings_lib.RunSettings) -> list[base.PostProcessing]:
  """Returns what shapes values before the clip and filters releases."""
  members = []
  if settings.precondition is not None:
    members.append(fedsmp_tff.Preconditioner(exponent=settings.precondition))
  if settings.predict is not None:
    members.append(fedsmp_tff.Prediction(share=settings.predict))
  if settings.server_filter is not None:
    members.append(server_filter(settings))
  return members


def clipping_schedule(
    settings: settings_lib.RunSettings, training: client_training.LocalTraining
) -> Optional[Callable[[tf.Tensor], tf.Tensor]]:
  """Returns the factor on C as a function of the round; None if C stays.

  Args:
    settings: The run's settings.
    training: What clients do.
  """
  if settings.clip_schedule is None:
    return None
  return lambda round_num: (
      training.learning_rate_fn(round_num) / training.learning_rate_fn(tf.constant(0))
  )


def server_optimizer(
    settings: settings_lib.RunSettings,
) -> tff.learning.optimizers.Optimizer:
  """The optimizer that applies updates to the weights."""
  rate = settings.server_learning_rate
  name = settings_lib.OPTIMIZERS[settings.server_optimizer or 'sgd']
  optimizer = getattr(tff.learning.optimizers, name)(rate)
  if settings.server_schedule is None:
    return optimizer
  return tff.learning.optimizers.schedule_learning_rate(
      optimizer,
      lambda round_num: rate * (1 - tf.cast(round_num, tf.float32) / settings.rounds),
  )


def exponential_average(settings: settings_lib.RunSettings) -> averaging.ExponentialAverage:
  """The average of the weights that is evaluated next to the final ones."""
  return averaging.ExponentialAverage(**_given(decay=settings.average_decay))


def server_filter(settings: settings_lib.RunSettings) -> base.Filter:
  """Returns the filter on releases; --server_filter is set."""
  kind = getattr(fedsmp_tff, settings_lib.FILTERS[settings.server_filter])
  return kind(**_given(decay=settings.server_filter_decay))


def _given(**options: Any) -> dict[str, Any]:
  """Returns the options that are set; the library has the defaults of the others."""
  return {name: value for name, value in options.items() if value is not None}


def _expected_to_report(seats: int, dropout: float) -> int:
  """The number below which reports fall with probability 3e-5."""
  expected = seats * (1 - dropout)
  return max(1, math.floor(expected - 4 * math.sqrt(expected * dropout)))
