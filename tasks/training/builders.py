"""Builds what the settings of a run describe: seeds, model, privacy, aggregator, training."""

from collections.abc import Callable
import dataclasses
import math
import secrets
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import datasets
from tasks import errors
from tasks.cli import options
from tasks.cli import settings as settings_lib
from tasks.models import initializers
from tasks.models import split

_SECRET = ('sampling', 'process')


class Seeds(NamedTuple):
  """One seed a stream, each of 32 bits.

  Attributes:
    partition: Of the data among clients, and of the public set.
    weights: Of the initial weights.
    evaluation: Of the test examples that are measured between rounds.
    sampling: Of who takes part in a round; None: the sampler's own entropy.
    process: Of masks, the order of examples and the noise; None: all of it fresh.
  """

  partition: int
  weights: int
  evaluation: int
  sampling: Optional[int]
  process: Optional[int]

  def public(self) -> dict[str, int]:
    """Those that protect nobody, for config.json: the same when the run resumes."""
    return {n: v for n, v in self._asdict().items() if n not in _SECRET}


def make_seeds(seed: Optional[int], config: Optional[dict[str, Any]]) -> Seeds:
  """The seeds of a run.

  Args:
    seed: The run's; None: from the operating system's entropy.
    config: The contents of config.json, if the run resumes.
  """
  if seed is None and config is not None:
    return Seeds(**config['seeds'], **dict.fromkeys(_SECRET))
  sequence = np.random.SeedSequence(secrets.randbits(128) if seed is None else seed)
  partition, weights, sampling, process, evaluation = (
      int(word) for word in sequence.generate_state(5, np.uint32)
  )
  made = Seeds(partition, weights, evaluation, sampling, process)
  return made if seed is not None else made._replace(**dict.fromkeys(_SECRET))


def model(
    settings: settings_lib.RunSettings, seeds: Seeds
) -> tff.learning.models.FunctionalModel:
  """The task's model, with the run's initial weights."""
  initializer = initializers.INITIALIZERS[settings.initializer](seeds.weights)
  return datasets.TASKS[settings.task].build_model(settings.task_options, initializer)


def trained_model(
    settings: settings_lib.RunSettings, model: tff.learning.models.FunctionalModel
) -> tff.learning.models.FunctionalModel:
  """Returns the part of the task's model that rounds train.

  Raises:
    InputError: If the model does not fit --trainable.
  """
  if settings.trainable != settings_lib.HEAD:
    return model
  if not isinstance(model, split.SplitModel):
    raise errors.InputError(
        f'--trainable={settings.trainable} needs a model whose last layer is known, but that of'
        f' --task={settings.task} is a {type(model).__name__}. Return a'
        ' tasks.models.split.SplitModel from its `build_model`, or set'
        f' --trainable={settings_lib.ALL}.'
    )
  return model.head()


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
  integers = private and s.noise != mechanism_lib.GAUSSIAN
  try:
    spec = spec_lib.PrivacySpec(
        population=num_clients,
        clients_per_round=s.clients_per_round,
        rounds=max(s.rounds, 1),  # Without clients there are none.
        noise_multiplier=s.noise_multiplier or 0.0,
        clipping_norm=s.clip if private else math.inf,
        delta=spec_lib.default_delta(num_clients) if s.delta is None else s.delta,
        sampling=s.sampling,
        noise=s.noise if private else mechanism_lib.GAUSSIAN,
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


def num_kept(settings: settings_lib.RunSettings, dim: int) -> int:
  """Returns k, for a model of d parameters."""
  return fedsmp_tff.RandK(settings.p).num_kept(dim) if settings.system.masked else dim


def local_training(
    settings: settings_lib.RunSettings,
) -> fedsmp_tff.LocalTraining:
  """Returns what clients do in a round."""
  defaults = datasets.TASKS[settings.task].defaults

  def learning_rate(round_num):
    decays = tf.cast(round_num // defaults.learning_rate_decay_rounds, tf.float32)
    return settings.learning_rate * defaults.learning_rate_decay**decays

  return fedsmp_tff.LocalTraining(
      tff.learning.optimizers.build_sgdm(
          settings.learning_rate, settings.momentum
      ),
      settings.batch_size,
      epochs=settings.local_epochs,
      learning_rate_fn=learning_rate,
  )


def clipping_schedule(
    settings: settings_lib.RunSettings, training: fedsmp_tff.LocalTraining
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
  if settings.server_learning_rate_schedule == settings_lib.CONSTANT:
    return optimizer
  return tff.learning.optimizers.schedule_learning_rate(
      optimizer,
      lambda round_num: rate * (1 - tf.cast(round_num, tf.float32) / settings.rounds),
  )
