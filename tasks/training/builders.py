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

_Model = tff.learning.models.FunctionalModel
_SECRET = ('sampling', 'process')


class Seeds(NamedTuple):
  """One seed per stream, each of 32 bits.

  Attributes:
    partition: Partition of the data among clients, and the public set.
    weights: Initial weights.
    evaluation: Test examples that are measured between rounds.
    sampling: Clients of each round; None: the sampler's own entropy.
    process: Masks, the order of examples and the noise; None: fresh entropy.
  """

  partition: int
  weights: int
  evaluation: int
  sampling: Optional[int]
  process: Optional[int]

  def public(self) -> dict[str, int]:
    """Returns the seeds that protect no client, for config.json and for resuming."""
    return {name: seed for name, seed in self._asdict().items() if name not in _SECRET}


def make_seeds(seed: Optional[int], config: Optional[dict[str, Any]]) -> Seeds:
  """Returns the seeds of a run: from `seed`, config.json if it resumes, or fresh entropy."""
  fresh = dict.fromkeys(_SECRET)
  if seed is None and config is not None:
    return Seeds(**config['seeds'], **fresh)
  sequence = np.random.SeedSequence(secrets.randbits(128) if seed is None else seed)
  words = map(int, sequence.generate_state(5, np.uint32))
  partition, weights, sampling, process, evaluation = words
  seeds = Seeds(partition, weights, evaluation, sampling, process)
  return seeds if seed is not None else seeds._replace(**fresh)


def model(settings: settings_lib.RunSettings, seeds: Seeds) -> _Model:
  """Returns the task's model, with the run's initial weights."""
  initializer = initializers.INITIALIZERS[settings.initializer](seeds.weights)
  return datasets.TASKS[settings.task].build_model(settings.task_options, initializer)


def trained_model(settings: settings_lib.RunSettings, model: _Model) -> _Model:
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


def num_kept(settings: settings_lib.RunSettings, dim: int) -> int:
  """Returns k, for a model of d parameters."""
  return fedsmp_tff.RandK(settings.p).num_kept(dim) if settings.system.masked else dim


def privacy_spec(
    settings: settings_lib.RunSettings, num_clients: int, num_kept: int
) -> spec_lib.PrivacySpec:
  """Returns the specification, from which sampler, noise and epsilon come.

  For n clients and k coordinates. Without --clip, clients neither clip nor add noise.

  Raises:
    InputError: If a flag is out of range, or no noise reaches --epsilon.
  """
  s = settings
  noise = mechanism_lib.GAUSSIAN if s.clip is None else s.noise
  # The vote of adaptive clipping is one more value.
  num_values = num_kept + (s.clip_quantile is not None)
  try:
    spec = spec_lib.PrivacySpec(
        population=num_clients,
        clients_per_round=s.clients_per_round,
        rounds=max(s.rounds, 1),  # The public-only baseline has none.
        noise_multiplier=s.noise_multiplier or 0.0,
        clipping_norm=math.inf if s.clip is None else s.clip,
        delta=spec_lib.default_delta(num_clients) if s.delta is None else s.delta,
        sampling=s.sampling,
        noise=noise,
        num_values=None if noise == mechanism_lib.GAUSSIAN else num_values,
    )
    return spec if s.epsilon is None else spec.calibrated(s.epsilon)
  except ValueError as error:
    raise errors.as_flags(error, options.options_of(settings_lib.RunSettings)) from None


def mechanism(
    settings: settings_lib.RunSettings, spec: spec_lib.PrivacySpec
) -> fedsmp_tff.Mechanism:
  """Returns the clip and the noise of a run."""
  quantile = settings.clip_quantile
  return dataclasses.replace(
      spec.mechanism(),
      adaptive_clipping=None if quantile is None else fedsmp_tff.AdaptiveClipping(quantile),
      clipping_schedule=clipping_schedule(settings),
  )


def local_training(settings: settings_lib.RunSettings) -> fedsmp_tff.LocalTraining:
  """Returns the clients' training in a round."""
  defaults = datasets.TASKS[settings.task].defaults

  def learning_rate(round_num):
    decays = tf.cast(round_num // defaults.learning_rate_decay_rounds, tf.float32)
    return settings.learning_rate * defaults.learning_rate_decay**decays

  return fedsmp_tff.LocalTraining(
      tff.learning.optimizers.build_sgdm(settings.learning_rate, settings.momentum),
      settings.batch_size, epochs=settings.local_epochs, learning_rate_fn=learning_rate,
  )


def clipping_schedule(
    settings: settings_lib.RunSettings,
) -> Optional[Callable[[tf.Tensor], tf.Tensor]]:
  """Returns the factor on C as a function of the round; None if C is constant."""
  if settings.clip_schedule is None:
    return None
  learning_rate = local_training(settings).learning_rate_fn
  return lambda round_num: learning_rate(round_num) / learning_rate(tf.constant(0))


def server_optimizer(settings: settings_lib.RunSettings) -> tff.learning.optimizers.Optimizer:
  """Returns the optimizer that applies updates to the weights."""
  rate = settings.server_learning_rate
  optimizer = tff.learning.optimizers.build_sgdm(rate)
  if settings.server_learning_rate_schedule == settings_lib.CONSTANT:
    return optimizer
  return tff.learning.optimizers.schedule_learning_rate(
      optimizer, lambda round_num: rate * (1 - tf.cast(round_num, tf.float32) / settings.rounds)
  )
