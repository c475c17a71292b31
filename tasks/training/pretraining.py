"""Pre-training: trains a task's model on its public examples, before round 0, at epsilon = 0.

Gains from private training are measured against these weights. They are the baseline
`--algorithm=public_only`, and `--warm_start=public` starts any method from them.

A task has one fixed schedule (`task.Pretraining`), chosen on public data alone (docs/method.md,
"Pre-training"). A run tunes nothing: tuning at run time, on 200 images or three people, once gave
20.76 % accuracy instead of 45 %.
"""

from collections.abc import Callable
import pathlib
import sys
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import errors
from tasks.datasets import task as task_lib
from tasks.models import split
from tasks.models import weights as weights_lib
from tasks.training import experiment as experiment_lib
from tasks.training import features
from tasks.training import run_directory
from tasks.training import settings as settings_lib

# A constant, so that the weights do not depend on the number of CPU cores.
_HALVES = 2


def train(
    model: tff.learning.models.FunctionalModel, schedule: task_lib.Pretraining,
    examples: task_lib.Examples, seed: int,
    report: Callable[[int, float], None] = lambda epoch, loss: None,
) -> tff.learning.models.ModelWeights:
  """Returns weights pre-trained on public examples by a fixed schedule.

  Adam (Kingma and Ba 2015) on gradients clipped to norm 1; the learning rate rises linearly in the
  first epoch and then decays to zero, on a cosine. A gradient is the mean over two halves of a
  minibatch, which two CPU cores compute at the same time. The result is the moving average of the
  weights, with the last layer divided by the schedule's temperature: a model of few examples is
  overconfident, and private rounds would first spend their signal on correcting that.

  Args:
    model: The model, with the initial weights.
    schedule: The task's schedule.
    examples: The public examples, x and y.
    seed: Seed of the order of examples. One seed gives the same bits on one type of CPU.
    report: Receives each epoch, from 1, and its mean training loss.

  Raises:
    RunError: If the loss is not finite.
  """
  trainable, non_trainable = model.initial_weights
  variables = [tf.Variable(weight) for weight in tf.nest.flatten(trainable)]
  averages = [tf.Variable(weight) for weight in variables]
  x, y = (tf.constant(array) for array in examples)
  num = len(examples[0])
  per_epoch = -(-num // schedule.batch_size)
  # Keras's newer Adam takes 10 operations on each weight where this one takes a fused one.
  adam = tf.keras.optimizers.legacy.Adam(
      # Without the warm-up one LSTM in ten predicts the most frequent characters for epochs.
      tf.keras.optimizers.schedules.CosineDecay(
          0.0, max(1, (schedule.epochs - 1) * per_epoch), warmup_target=schedule.learning_rate,
          warmup_steps=per_epoch,
      ),
      global_clipnorm=1.0,
  )

  def loss_and_gradient(values, rows):
    with tf.GradientTape() as tape:
      tape.watch(values)
      weights = (tf.nest.pack_sequence_as(trainable, values), non_trainable)
      output = model.predict_on_batch(weights, tf.gather(x, rows), training=True)
      loss = model.loss(output, tf.gather(y, rows))
    return loss, *tape.gradient(loss, values)

  # One trace for all sizes: the trace of the LSTM takes seconds.
  @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)] * _HALVES)
  def step(*halves):
    values = [variable.value() for variable in variables]
    parts = [loss_and_gradient(values, rows) for rows in halves]
    loss, *gradient = (tf.add_n(part) / len(parts) for part in zip(*parts))
    adam.apply_gradients(zip(gradient, variables))
    for average, variable in zip(averages, variables):
      average.assign_add((1 - schedule.average_decay) * (variable - average))
    return loss

  rng = np.random.default_rng(seed)
  for epoch in range(1, schedule.epochs + 1):
    order, losses = rng.permutation(num), []
    for start in range(0, num, schedule.batch_size):
      rows = order[start : start + schedule.batch_size]
      halves = np.array_split(rows, _HALVES) if len(rows) > 1 else [rows] * _HALVES
      losses.append(step(*map(tf.constant, halves)))
    loss = float(np.mean(losses))
    if not np.isfinite(loss):
      raise errors.RunError(
          f'The loss on the public examples is {loss} in epoch {epoch} of pre-training. Check'
          ' the examples and the initial weights.'
      )
    report(epoch, loss)
  flat = [average.numpy() for average in averages]
  # The last layer: a matrix, and its bias if it has one.
  num = 2 if len(flat) > 1 and flat[-1].ndim == 1 else 1
  flat[-num:] = [array / np.float32(schedule.temperature) for array in flat[-num:]]
  return tff.learning.models.ModelWeights(
      tf.nest.pack_sequence_as(trainable, flat), non_trainable
  )


def initialize(
    experiment: experiment_lib.Experiment, out: Optional[run_directory.RunDirectory], began: bool
) -> experiment_lib.Experiment:
  """Returns the run with the initial weights and the frozen body that its flags ask for.

  A run that `began` has its weights in a checkpoint, and its body in its directory `out`; None is
  for a run that writes nothing.
  """
  settings, model = experiment.settings, experiment.task_model
  has_body = settings.trainable == settings_lib.HEAD
  if settings.warm_start == settings_lib.NONE or (began and not has_body):
    return experiment
  if began:
    return experiment.with_body(_read_body(model, out.path / run_directory.BODY))
  weights, body = pretrain(experiment)
  if body is None:
    return experiment.with_initial_weights(weights)
  if out is not None:
    out.write_weights(
        tff.learning.models.ModelWeights(body.weights, (body.matrix, body.mean)), run_directory.BODY
    )
  return experiment.with_initial_weights(weights).with_body(body)


def pretrain(
    experiment: experiment_lib.Experiment,
) -> tuple[tff.learning.models.ModelWeights, Optional[split.FrozenBody]]:
  """Returns pre-trained weights of what rounds train, and the frozen body of --trainable=head."""
  settings, model = experiment.settings, experiment.task_model
  public, schedule = experiment.data.public, experiment.pretraining

  def report(epoch, loss):
    line = f'pre-training: epoch {epoch}/{schedule.epochs}, loss {loss:.4f}'
    print(line, file=sys.stderr, flush=True)

  weights = train(model, schedule, public, experiment.seeds.partition, report)
  if settings.trainable != settings_lib.HEAD:
    return weights, None
  try:
    body, head = features.split(model, weights, public, experiment.is_scored)
  except ValueError as error:
    raise errors.InputError(f'--trainable={settings.trainable}: {error}') from None
  return head, body


def _read_body(model: split.SplitModel, path: pathlib.Path) -> split.FrozenBody:
  """Returns the frozen body of a run that resumes."""
  like = model.initial_weights[0][:-2], (None, None)  # The matrix and the mean.
  remedy = 'Restore it from a backup, or start over with --overwrite.'
  weights = weights_lib.read(path, like, remedy)
  return split.FrozenBody(model.body, weights.trainable, *weights.non_trainable)
