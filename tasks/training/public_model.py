"""Trains a task's model on its public examples alone: what needs no client, at epsilon 0.

Whatever private rounds are worth, they are worth it beyond these weights: they are the baseline
`--algorithm=public_only` and the start that `--warm_start=public` gives to any system.
"""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import client_training
from fedsmp_tff import constants
from fedsmp_tff import randomness
from tasks import errors
from tasks.datasets import task as task_lib

# The rates that are tried, each for at most so many passes.
LEARNING_RATES = (0.003, 0.01, 0.03)
MAX_EPOCHS = 40
# A rate is given up after so many passes without a lower loss or a higher accuracy on the examples
# held back.
_PATIENCE = 5
BATCH_SIZE = 16
CLIPPING_NORM = 1.0
# Of the weights' average, a step: of 1,000 examples, over 1.6 passes.
AVERAGE_DECAY = 0.99
# One in so many public examples chooses the rate, the number of passes and the temperature.
_VALIDATION = 5
# What the last layer is divided by. Few examples make a model too sure of itself (Shakespeare: 1.6 on
# other roles), and private rounds would first spend their signal on that: from weights at temperature
# 1 a round of 80 clients (epsilon = 8 in 60 rounds) adds at most 0.2 points, at 1.6 it adds 0.8.
TEMPERATURES = (1.0, 1.2, 1.4, 1.7, 2.0, 2.4, 2.8, 3.4)


class PublicModel(NamedTuple):
  """Weights, and how they were trained.

  Attributes:
    weights: The `ModelWeights`.
    learning_rate: Of Adam.
    epochs: Passes over all public examples.
    temperature: What the weights of the last layer were divided by.
    validation_accuracy: Of the same training without a fifth of the examples, on that fifth;
      in [0, 1].
  """

  weights: tff.learning.models.ModelWeights
  learning_rate: float
  epochs: int
  temperature: float
  validation_accuracy: float

  def as_dict(self) -> dict[str, Any]:
    """How the weights were trained, for config.json."""
    return {name: value for name, value in self._asdict().items() if name != 'weights'}

  def text(self) -> str:
    """Describes the training, as a phrase."""
    return (
        f'Adam, rate {self.learning_rate:g}, {self.epochs} epochs, temperature'
        f' {self.temperature:g}, chosen on a fifth of the examples'
        f' ({100 * self.validation_accuracy:.1f} % there)'
    )


class _Curves(NamedTuple):
  """Measurements on the examples held back.

  Attributes:
    losses: After each pass, float32[rates, MAX_EPOCHS]; NaN after a training's last.
    accuracies: The same of the accuracy.
    temperature_losses: At the end at each temperature, float32[rates, len(TEMPERATURES)].
    temperature_accuracies: The same of the accuracy.
  """

  losses: np.ndarray
  accuracies: np.ndarray
  temperature_losses: np.ndarray
  temperature_accuracies: np.ndarray

  def best(self) -> tuple[int, int]:
    """Returns the rate and the pass of the best accuracy; among equals, of the least loss."""
    # A training that diverged has losses that are no numbers.
    measured = np.isfinite(self.losses)
    if not measured.any():
      raise errors.RunError(
          'the training on public examples has no finite loss at any rate; look at the examples.'
      )
    accuracies = np.where(measured, self.accuracies, -1.0)
    losses = np.where(accuracies == accuracies.max(), self.losses, np.inf)
    rate, epoch = np.unravel_index(np.nanargmin(losses), losses.shape)
    return int(rate), int(epoch)

  def temperature(self, rate: int) -> float:
    """Returns the temperature of the least loss, of those that name no fewer labels.

    At any temperature a softmax names the same labels; another last layer need not.
    """
    losses, accuracies = self.temperature_losses[rate], self.temperature_accuracies[rate]
    allowed = np.isfinite(losses) & (accuracies >= accuracies[0])
    return TEMPERATURES[int(np.argmin(np.where(allowed, losses, np.inf)))]


def train(
    model: tff.learning.models.FunctionalModel,
    is_scored: Callable[[Any], Any],
    examples: task_lib.Examples,
    seed: int,
    people: Optional[np.ndarray] = None,
) -> PublicModel:
  """Trains on public examples, with the rate and the number of passes that they choose.

  Each rate trains on four fifths of the examples (`_split`), with an exponential average of the weights beside,
  which is what counts: after constant steps the last weights are noise (78 % on Fashion-MNIST where
  their average has 84 %). The pass that names most labels of the last fifth wins, among equals that
  of the least loss, and the model trains once more, on all examples, with that rate for as many
  passes. The trainings are clients of a TFF computation: they run beside one another on all workers,
  with the same bits for a seed whatever the number of workers.

  Args:
    model: The model; its initial weights are where training starts.
    is_scored: As `Task.is_scored`.
    examples: The public examples, at least five.
    seed: Of which examples are held back, and of their order in each pass.
    people: As `TaskData.public_people`: then whole people are held back.
  """
  aside_rows, rest_rows = _split(len(examples[0]), seed, people)

  def part(rows):
    return tuple(array[rows] for array in examples)

  fit = _build(model, is_scored)
  rest, aside = part(rest_rows), part(aside_rows)
  rates = range(len(LEARNING_RATES))
  curves, _ = fit([(rate, MAX_EPOCHS, _PATIENCE, seed, 0, rest, aside) for rate in rates])
  best, last = curves.best()
  again, weights = fit([
      (best, last + 1, MAX_EPOCHS, seed, 1, examples, part(aside_rows[:0])),
      (best, last + 1, MAX_EPOCHS, seed, 0, rest, aside),
  ])
  temperature = again.temperature(best)
  return PublicModel(
      tff.learning.models.ModelWeights(
          _cooled(weights.trainable, temperature), weights.non_trainable
      ),
      LEARNING_RATES[best],
      last + 1,
      temperature,
      float(curves.accuracies[best, last]),
  )


def _split(
    num: int, seed: int, people: Optional[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rows of the examples held back, a fifth, and of the others.

  Of two people or more, whole people are held back until they have a fifth: the test set is of other
  people too, and on sequences of the same roles the Shakespeare model reached 51 % where it reaches 45 %
  there, so that it was chosen too sure of itself.
  """
  rng, wanted = np.random.default_rng(seed), max(1, num // _VALIDATION)
  if people is None or len(np.unique(people)) < 2:
    order = rng.permutation(num)
    return order[:wanted], order[wanted:]
  # All but one person at most: somebody must train.
  names = rng.permutation(np.unique(people))[:-1]
  sizes = np.array([np.count_nonzero(people == name) for name in names])
  held_back = names[: np.searchsorted(np.cumsum(sizes), wanted) + 1]
  is_aside = np.isin(people, held_back)
  return np.flatnonzero(is_aside), np.flatnonzero(~is_aside)


def _cooled(trainable: Any, temperature: Any) -> Any:
  """Returns the weights with the last layer's, the last matrix and its bias, over a temperature."""
  flat = tf.nest.flatten(trainable)
  num = 2 if len(flat) > 1 and len(flat[-1].shape) == 1 else 1
  return tf.nest.pack_sequence_as(
      trainable, [*flat[:-num], *(array / temperature for array in flat[-num:])]
  )


def _build(
    model: tff.learning.models.FunctionalModel, is_scored: Callable[[Any], Any]
) -> Callable[[list[tuple]], tuple[_Curves, tff.learning.models.ModelWeights]]:
  """Returns a function from trainings to their curves and the weights of the kept training.

  A training is a rate's position, a number of passes, a patience, a seed, 1 to keep its weights
  or 0, the examples to train on and those to measure on.
  """
  optimizer = tff.learning.optimizers.build_adam(LEARNING_RATES[0])

  @tff.tensorflow.computation
  def initial_weights():
    return tff.learning.models.ModelWeights(*constants.tensors(model.initial_weights))

  weights_type = initial_weights.type_signature.result
  examples_type = tff.SequenceType(
      tff.types.tensorflow_to_type(client_training.element_spec(model))
  )
  training_type = tff.StructWithPythonType(
      [('settings', tff.SequenceType(np.int64)), ('train', examples_type),
       ('validation', examples_type)],
      collections.OrderedDict,
  )

  def step(weights, trainable, state, rows, examples):
    x, y = tf.nest.map_structure(lambda array: tf.gather(array, rows), examples)
    with tf.GradientTape() as tape:
      tape.watch(trainable)
      output = model.predict_on_batch((trainable, weights.non_trainable), x, training=True)
      loss = model.loss(output, y)
    gradient = tape.gradient(loss, trainable)
    clipped, _ = tf.clip_by_global_norm(tf.nest.flatten(gradient), CLIPPING_NORM)
    return optimizer.next(state, trainable, tf.nest.pack_sequence_as(gradient, clipped))

  def measure(weights, trainable, examples):
    x, y = examples
    output = model.predict_on_batch((trainable, weights.non_trainable), x, training=False)
    counts = is_scored(y)
    agrees = tf.equal(tf.argmax(output, axis=-1, output_type=tf.int32), tf.cast(y, tf.int32))
    right = tf.math.count_nonzero(tf.logical_and(agrees, counts), dtype=tf.float32)
    scored = tf.math.count_nonzero(counts, dtype=tf.float32)
    # The mean over no examples is not a number.
    loss = tf.math.multiply_no_nan(model.loss(output, y), tf.minimum(scored, 1.0))
    return loss, tf.math.divide_no_nan(right, scored)

  @tff.tensorflow.computation(weights_type, training_type)
  def fit_one(weights, training):
    # No `Dataset.reduce`, as in `evaluation`.
    settings = client_training.examples_of(training['settings'])
    position, epochs, patience, seed, kept = (settings[i] for i in range(5))
    examples, validation = (
        client_training.examples_of(training[name]) for name in ('train', 'validation')
    )
    num = tf.shape(examples[0])[0]
    rate = tf.gather(tf.constant(LEARNING_RATES), position)
    state = optimizer.initialize(
        tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights.trainable)
    )
    state = optimizer.set_hparams(
        state, collections.OrderedDict(
            optimizer.get_hparams(state),
            **{tff.learning.optimizers.LEARNING_RATE_KEY: rate},
        )
    )
    state = tf.nest.map_structure(tf.convert_to_tensor, state)

    def one_pass(epoch, best_epoch, best_loss, best_accuracy, trainable, state, average, losses, accuracies):
      order = tf.random.experimental.stateless_shuffle(
          tf.range(num), randomness.fold_in(tf.stack([seed, 0]), epoch)
      )

      def one_step(start, trainable, state, average):
        state, trainable = step(
            weights, trainable, state, order[start : start + BATCH_SIZE], examples
        )
        average = tf.nest.map_structure(
            lambda mean, new: mean + (1 - AVERAGE_DECAY) * (new - mean), average, trainable
        )
        return start + BATCH_SIZE, trainable, state, average

      _, trainable, state, average = tf.while_loop(
          lambda start, *_: start < num, one_step, (0, trainable, state, average),
          parallel_iterations=1,
      )
      loss, accuracy = measure(weights, average, validation)
      better = tf.logical_or(loss < best_loss, accuracy > best_accuracy)
      at = tf.cast([[epoch]], tf.int32)
      return (
          epoch + 1,
          tf.where(better, epoch, best_epoch),
          tf.minimum(loss, best_loss),
          tf.maximum(accuracy, best_accuracy),
          trainable,
          state,
          average,
          tf.tensor_scatter_nd_update(losses, at, [loss]),
          tf.tensor_scatter_nd_update(accuracies, at, [accuracy]),
      )

    nothing = tf.fill([MAX_EPOCHS], np.float32(np.nan))
    *_, average, losses, accuracies = tf.while_loop(
        lambda epoch, best_epoch, *_: epoch < tf.minimum(epochs, best_epoch + patience + 1),
        one_pass,
        (
            tf.constant(0, tf.int64), tf.constant(0, tf.int64),
            tf.constant(np.inf, tf.float32), tf.constant(-1.0, tf.float32),
            weights.trainable, state, weights.trainable, nothing, nothing,
        ),
        parallel_iterations=1,
    )
    cooled = [measure(weights, _cooled(average, t), validation) for t in TEMPERATURES]
    own = tf.one_hot(position, len(LEARNING_RATES), on_value=True, off_value=False)[:, tf.newaxis]
    measured = (losses, accuracies, *map(tf.stack, zip(*cooled)))
    return (
        tuple(tf.where(own, values, 0.0) for values in measured),
        # Not by a product: weights that diverged are no numbers.
        tf.nest.map_structure(
            lambda array: tf.where(kept > 0, array, tf.zeros_like(array)),
            tff.learning.models.ModelWeights(average, weights.non_trainable),
        ),
    )

  @tff.federated_computation(
      tff.FederatedType(weights_type, tff.SERVER), tff.FederatedType(training_type, tff.CLIENTS)
  )
  def fit_all(weights, trainings):
    return tff.federated_sum(
        tff.federated_map(fit_one, (tff.federated_broadcast(weights), trainings))
    )

  def fit(trainings):
    measured, weights = fit_all(
        initial_weights(),
        [
            collections.OrderedDict(
                settings=tf.data.Dataset.from_tensor_slices(np.array(settings, np.int64)),
                train=tf.data.Dataset.from_tensor_slices(examples),
                validation=tf.data.Dataset.from_tensor_slices(validation),
            )
            for *settings, examples, validation in trainings
        ],
    )
    return _Curves(*measured), weights

  return fit
