"""Builds what a run's settings describe: model, sparsifier, privacy, aggregator, training."""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Optional

import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import client_training
from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import datasets
from tasks import errors
from tasks.config import options
from tasks.config import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.models import initializers
from tasks.models import whitening
from tasks.training import seeds as seeds_lib

# A last layer's matrix and bias.
_HEAD_TENSORS = 2


def model(
    settings: settings_lib.RunSettings, seeds: seeds_lib.Seeds
) -> tff.learning.models.FunctionalModel:
  """The task's model, with the run's initial weights."""
  initializer = initializers.INITIALIZERS[settings.initializer](seeds.weights)
  return datasets.TASKS[settings.task].build_model(initializer)


def in_coordinates(
    settings: settings_lib.RunSettings, plain: tff.learning.models.FunctionalModel
) -> tff.learning.models.FunctionalModel:
  """The task's model in the coordinates that clients train: those of --whiten, or its own.

  Raises:
    InputError: If the model does not fit --whiten.
  """
  if settings.whiten is None:
    return plain
  try:
    return whitening.whitened(plain)
  except ValueError as error:
    raise errors.InputError(f'--whiten={settings.whiten}: {error}') from None


def privacy_spec(
    settings: settings_lib.RunSettings, num_clients: int, num_kept: int
) -> spec_lib.PrivacySpec:
  """Returns the specification, from which sampler, noise and epsilon come.

  Args:
    settings: The run's settings.
    num_clients: n, the number of clients in the data.
    num_kept: k.

  Returns:
    The specification; without privacy, clients neither clip nor add noise.

  Raises:
    InputError: If a flag is out of range, or no noise reaches --epsilon.
  """
  s = settings
  private = s.clip is not None
  integers = private and s.noise != noise_lib.GAUSSIAN
  try:
    spec = spec_lib.PrivacySpec(
        population=num_clients,
        clients_per_round=s.clients_per_round,
        rounds=max(s.rounds, 1),  # Without clients there are none.
        noise_multiplier=s.noise_multiplier or 0.0,
        clipping_norm=s.clip if private else math.inf,
        delta=spec_lib.default_delta(num_clients) if s.delta is None else s.delta,
        sampling=s.sampling,
        noise=s.noise if private else noise_lib.GAUSSIAN,
        # The vote of adaptive clipping is one more value.
        num_values=num_kept + (s.clip_quantile is not None) if integers else None,
    )
    return spec if s.epsilon is None else spec.calibrated(s.epsilon)
  except ValueError as error:
    raise errors.as_flags(error, options.options_of(settings_lib.RunSettings)) from None


def aggregator(
    settings: settings_lib.RunSettings,
    spec: spec_lib.PrivacySpec,
    kept: fedsmp_tff.Sparsifier,
) -> fedsmp_tff.FedSmpFactory:
  """Returns the run's masked private sum."""
  adaptive = None
  if settings.clip_quantile is not None:
    adaptive = fedsmp_tff.AdaptiveClipping(settings.clip_quantile)
  mechanism = dataclasses.replace(
      spec.mechanism(),
      adaptive_clipping=adaptive,
      clipping_schedule=clipping_schedule(settings, local_training(settings)),
  )
  return fedsmp_tff.FedSmpFactory(kept, mechanism)


def num_kept(settings: settings_lib.RunSettings, sizes: Sequence[int]) -> int:
  """k, for a model of trainable weights of these sizes."""
  kind = settings_lib.ALGORITHMS[settings.algorithm].sparsifier
  if kind is None:
    return sum(sizes)
  if kind == 'head':
    return sum(sizes[-_HEAD_TENSORS:])
  return fedsmp_tff.RandK(settings.p).num_kept(sum(sizes))


def sparsifier(
    settings: settings_lib.RunSettings, data: task_lib.TaskData, num: int
) -> fedsmp_tff.Sparsifier:
  """Returns the run's sparsifier.

  Args:
    settings: The run's settings.
    data: The data.
    num: k.

  Raises:
    InputError: If the public data have too few examples for --public_clients.
  """
  kind = settings_lib.ALGORITHMS[settings.algorithm].sparsifier
  if kind is None:
    return fedsmp_tff.Dense()
  if kind == 'head':
    return fedsmp_tff.Head(num)
  if kind == 'randk':
    return fedsmp_tff.RandK(settings.p, mask_rounds=settings.mask_rounds)
  if kind == 'released':
    return fedsmp_tff.ReleasedTopK(settings.p, mask_rounds=settings.mask_rounds)
  public = dict(
      public_examples=data.public,
      public_clients=_pseudo_clients(settings, len(data.public[0])),
      mask_rounds=settings.mask_rounds,
  )
  if settings.released_weight is not None:
    return fedsmp_tff.HybridTopK(
        settings.p, released_weight=settings.released_weight, **public
    )
  return fedsmp_tff.TopK(settings.p, **public)


def _pseudo_clients(settings: settings_lib.RunSettings, num_examples: int) -> Optional[int]:
  """Returns the number of `TopK`'s pseudo-clients; None for one training on all examples.

  By default they are few and their trainings longer than clients': shorter ones make worse masks in
  the long run (docs/results, "How top-k's coordinates are chosen").
  """
  clients = settings.public_clients
  if clients is None:
    return settings_lib.PSEUDO_CLIENTS if num_examples >= settings_lib.PSEUDO_CLIENTS else None
  if clients > num_examples:
    raise errors.InputError(
        f'--public_clients={clients} is more than the {num_examples} public examples; lower it, or'
        ' raise --public_examples.'
    )
  return clients or None


def local_training(
    settings: settings_lib.RunSettings,
) -> client_training.LocalTraining:
  """Returns what clients do in a round."""
  paper = datasets.TASKS[settings.task].settings

  def learning_rate(round_num):
    decays = tf.cast(round_num // paper.learning_rate_decay_rounds, tf.float32)
    return settings.learning_rate * paper.learning_rate_decay**decays

  return client_training.LocalTraining(
      tff.learning.optimizers.build_sgdm(
          settings.learning_rate, settings.momentum
      ),
      settings.batch_size,
      epochs=settings.local_epochs,
      learning_rate_fn=learning_rate,
  )


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
  optimizer = tff.learning.optimizers.build_sgdm(rate)
  if settings.server_schedule is None:
    return optimizer
  return tff.learning.optimizers.schedule_learning_rate(
      optimizer,
      lambda round_num: rate * (1 - tf.cast(round_num, tf.float32) / settings.rounds),
  )
