"""What a run's settings make: the model, the sparsifier, the aggregator, the local training."""

import dataclasses

import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import client_training
from fedsmp_tff.privacy import spec as spec_lib
from tasks import datasets
from tasks import errors
from tasks.config import post_processing
from tasks.config import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.models import initializers
from tasks.training import seeds as seeds_lib


def model(
    settings: settings_lib.RunSettings, seeds: seeds_lib.Seeds
) -> tff.learning.models.FunctionalModel:
  """The task's model, with the run's initial weights."""
  initializer = initializers.INITIALIZERS[settings.initializer](seeds.weights)
  return datasets.TASKS[settings.task].build_model(initializer)


def factory(
    settings: settings_lib.RunSettings,
    spec: spec_lib.PrivacySpec,
    kept: fedsmp_tff.Sparsifier,
) -> fedsmp_tff.FedSmpFactory:
  """Returns the run's aggregator.

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
        clipping_schedule=post_processing.clipping_schedule(settings, local_training(settings)),
        client_metrics=settings.client_metrics == 'exact',
    )
  except ValueError as error:  # Of the flags, only --bits is not checked yet.
    raise errors.InputError(f'--bits={settings.bits}: {error}') from None
  return fedsmp_tff.FedSmpFactory(
      kept, mechanism, post_processing=post_processing.post_processing(settings)
  )


def num_kept(settings: settings_lib.RunSettings, dim: int) -> int:
  """k."""
  if settings_lib.ALGORITHMS[settings.algorithm].sparsifier is None:
    return dim
  return fedsmp_tff.RandK(settings.p, settings.k).num_kept(dim)


def sparsifier(
    settings: settings_lib.RunSettings, data: task_lib.TaskData
) -> fedsmp_tff.Sparsifier:
  """The run's sparsifier."""
  kind = settings_lib.ALGORITHMS[settings.algorithm].sparsifier
  if kind is None:
    return fedsmp_tff.Dense()
  if kind == 'randk':
    return fedsmp_tff.RandK(settings.p, settings.k)
  if kind == 'released':
    return fedsmp_tff.ReleasedTopK(
        settings.p, settings.k, **post_processing.given(explore=settings.explore)
    )
  public = (data.public, settings.public_epochs, settings.public_steps)
  if settings.released_weight is not None:
    return fedsmp_tff.HybridTopK(
        settings.p, settings.k, *public, released_weight=settings.released_weight
    )
  return fedsmp_tff.TopK(settings.p, settings.k, *public)


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


