"""Builds what a run's settings describe: model, sparsifier, privacy, aggregator, training."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import client_training
from fedsmp_tff.post_processing import averaging
from fedsmp_tff.post_processing import base
from fedsmp_tff.privacy import spec as spec_lib
from tasks import datasets
from tasks import errors
from tasks.config import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.models import initializers
from tasks.models import whitening
from tasks.training import seeds as seeds_lib

_PSEUDO_CLIENTS = 4
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


def num_kept(settings: settings_lib.RunSettings, sizes: Sequence[int]) -> int:
  """k, for a model of trainable weights of these sizes."""
  kind = settings_lib.ALGORITHMS[settings.algorithm].sparsifier
  if kind is None:
    return sum(sizes)
  if kind == 'head':
    return sum(sizes[-_HEAD_TENSORS:])
  return fedsmp_tff.RandK(settings.p, settings.k).num_kept(sum(sizes))


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
      mask_rounds=settings.mask_rounds,
      **_pseudo_clients(settings, data),
  )
  if settings.released_weight is not None:
    return fedsmp_tff.HybridTopK(
        settings.p, settings.k, released_weight=settings.released_weight, **public
    )
  return fedsmp_tff.TopK(settings.p, settings.k, **public)


def default_public_clients(num_examples: int) -> dict[str, int]:
  """Returns what `TopK` takes where --public_clients is not given: a share of the examples each.

  Such trainings are shorter than the paper's and run beside one another. Shorter ones make worse
  masks in the long run: see docs/results, "How top-k's coordinates are chosen".

  Args:
    num_examples: The number of public examples.
  """
  if num_examples < _PSEUDO_CLIENTS:
    return {}
  return dict(
      public_clients=_PSEUDO_CLIENTS, public_client_examples=num_examples // _PSEUDO_CLIENTS
  )


def _pseudo_clients(
    settings: settings_lib.RunSettings, data: task_lib.TaskData
) -> dict[str, int]:
  """Returns the arguments of `TopK` for --public_clients; empty for one training on all examples."""
  clients = settings.public_clients
  num_examples = len(data.public[0])
  if clients is None:
    one = settings.public_epochs or settings.public_steps
    return {} if one else default_public_clients(num_examples)
  if not clients:
    return {}
  size = settings.public_client_examples or data.public_client_examples
  if clients * size > num_examples:
    raise errors.InputError(
        f'--public_clients={clients} of {size} examples each need {clients * size} public'
        f' examples, and there are {num_examples}; lower it, or raise --public_examples.'
    )
  return dict(public_clients=clients, public_client_examples=size)


def local_training(
    settings: settings_lib.RunSettings,
) -> client_training.LocalTraining:
  """Returns what clients do in a round."""

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
