"""Flags of post-processing: what the server makes of releases, none of which changes epsilon."""

from typing import Any, Optional

from absl import flags
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff.post_processing import averaging
from fedsmp_tff.post_processing import base

FILTERS = {
    'momentum': fedsmp_tff.Momentum,
    'low_pass': fedsmp_tff.LowPass,
    'shrinkage': fedsmp_tff.Shrinkage,
}
_OPTIMIZERS = {
    'sgd': tff.learning.optimizers.build_sgdm,
    'adagrad': tff.learning.optimizers.build_adagrad,
    'adam': tff.learning.optimizers.build_adam,
    'yogi': tff.learning.optimizers.build_yogi,
}

_EXPLORE = flags.DEFINE_float(
    'explore', None,
    'Only with --algorithm=fedsmp_released: the share of the k coordinates that are drawn at'
    ' random, in [0, 1] (default: 0.1).',
)
_RELEASED_WEIGHT = flags.DEFINE_float(
    'released_weight', None,
    'Only with *_topk: choose coordinates by past releases beside the public examples, with this'
    ' weight, in [0, 1], and by rows and columns of layers; 0: the latter alone (default: by each'
    ' coordinate\'s own public update, as in the paper).',
)
_PRECONDITION = flags.DEFINE_float(
    'precondition', None,
    'Multiply the k values before the clip by their past releases\' magnitude to the power of'
    ' minus this, and undo it after: 0.5 makes for the least noise (default: don\'t).',
)
_PREDICT = flags.DEFINE_float(
    'predict', None,
    'Subtract this share of the mean of past releases before the clip and add it after, in'
    ' (0, 1] (default: don\'t).',
)
_SERVER_FILTER = flags.DEFINE_enum(
    'server_filter', None, list(FILTERS),
    'What moves the weights instead of the release alone: momentum or a low-pass filter over'
    ' the rounds that kept a coordinate, or the release without the share that is noise'
    ' (default: the release).',
)
_SERVER_FILTER_DECAY = flags.DEFINE_float(
    'server_filter_decay', None,
    f'What is left of what a filter remembers, in [0, 1) (default: {fedsmp_tff.LowPass.decay}).',
)
_SERVER_OPTIMIZER = flags.DEFINE_enum(
    'server_optimizer', None, list(_OPTIMIZERS),
    'Applies the update to the weights, at --server_learning_rate (default: sgd). An adaptive'
    ' one takes a coordinate that was not kept for a gradient of zero.',
)
_SERVER_SCHEDULE = flags.DEFINE_enum(
    'server_schedule', None, ['linear'],
    'linear: the server\'s learning rate falls in a line, to nothing after --rounds: large steps'
    ' in the beginning, and little noise in the last weights (default: it stays).',
)
_CLIP_SCHEDULE = flags.DEFINE_enum(
    'clip_schedule', None, ['learning_rate'],
    'learning_rate: C falls with the clients\' learning rate, and the noise with it (default:'
    ' C stays).',
)
_AVERAGE_DECAY = flags.DEFINE_float(
    'average_decay', None,
    'Of the exponential average of the weights that is measured beside the last ones, in [0, 1)'
    ' (default: 0.95).',
)
_ALL = (
    _EXPLORE, _RELEASED_WEIGHT, _PRECONDITION, _PREDICT, _SERVER_FILTER, _SERVER_FILTER_DECAY,
    _SERVER_OPTIMIZER, _SERVER_SCHEDULE, _CLIP_SCHEDULE, _AVERAGE_DECAY,
)
NAMES = tuple(holder.name for holder in _ALL)


def from_flags() -> dict[str, Any]:
  """The flags' values by name, as `RunSettings` has them."""
  return {holder.name: holder.value for holder in _ALL}


def post_processing(settings: Any) -> list[base.PostProcessing]:
  """Returns what shapes values before the clip and filters releases.

  Args:
    settings: The run's `RunSettings`.
  """
  s = settings
  members = []
  if s.precondition is not None:
    members.append(fedsmp_tff.Preconditioner(exponent=s.precondition))
  if s.predict is not None:
    members.append(fedsmp_tff.Prediction(share=s.predict))
  if s.server_filter is not None:
    members.append(_filter(s))
  return members


def clipping_schedule(settings: Any, training: fedsmp_tff.LocalTraining) -> Optional[Any]:
  """Returns the factor on C as a function of the round; None if C stays.

  Args:
    settings: The run's `RunSettings`.
    training: What clients do.
  """
  if settings.clip_schedule is None:
    return None
  return lambda round_num: (
      training.learning_rate_fn(round_num) / training.learning_rate_fn(tf.constant(0))
  )


def server_optimizer(settings: Any) -> tff.learning.optimizers.Optimizer:
  """What applies updates to the weights."""
  rate = settings.server_learning_rate
  optimizer = _OPTIMIZERS[settings.server_optimizer or 'sgd'](rate)
  if settings.server_schedule is None:
    return optimizer
  return tff.learning.optimizers.schedule_learning_rate(
      optimizer,
      lambda round_num: rate * (1 - tf.cast(round_num, tf.float32) / settings.rounds),
  )


def exponential_average(settings: Any) -> averaging.ExponentialAverage:
  """Of the weights, measured beside the last ones."""
  return averaging.ExponentialAverage(**given(decay=settings.average_decay))


def given(**options: Any) -> dict[str, Any]:
  """Those that are set: the library has the defaults."""
  return {name: value for name, value in options.items() if value is not None}


def text(settings: Any) -> Optional[str]:
  """What is on, for the plan; None if nothing is."""
  s = settings
  parts = []
  if s.released_weight is not None:
    parts.append(
        f'coordinates by past releases too, of weight {s.released_weight:g}, and by rows and'
        ' columns of layers'
    )
  if s.precondition is not None:
    parts.append(
        f'values times magnitude^-{s.precondition:g} before the clip, undone after'
    )
  if s.predict is not None:
    parts.append(
        f'{s.predict:g} of the mean of past releases subtracted before the clip, added after'
    )
  if s.clip_schedule is not None:
    parts.append('C falls with the clients\' learning rate')
  if s.server_filter is not None:
    parts.append(f'{s.server_filter} of decay {_filter(s).decay:g} on releases')
  if s.server_optimizer is not None:
    parts.append(f'{s.server_optimizer} on the server')
  if s.server_schedule is not None:
    parts.append('the server\'s learning rate falls to nothing in a line')
  if not parts:
    return None
  return '; '.join(parts) + '. All of it from releases, public data and the schedule: epsilon is the same'


def _filter(settings: Any) -> base.Filter:
  return FILTERS[settings.server_filter](**given(decay=settings.server_filter_decay))
