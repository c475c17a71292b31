"""Evaluates weights on test examples: loss and accuracy."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import local_training
from fedsmp_tff.program import loop
from tasks import datasets
from tasks.datasets import task as task_lib
from tasks.models import predictions
from tasks.training import experiment as experiment_lib

# Largest shard: as fast as larger ones (1.7 s for 2,000 sequences of 80 characters on two CPU
# cores), and enough shards for many cores. A constant, so that sums of floats are the same on any
# machine.
_BATCH = 125


class Evaluation(NamedTuple):
  """The result of an evaluation on test examples.

  Attributes:
    loss: The model's own loss, mean over shards weighted by their examples.
    accuracy: Fraction of the scored labels that the model predicts, in [0, 1].
    accuracy_masked: Accuracy on labels other than padding; None if the task has no padding.
    accuracy_counted: Accuracy on all labels, with padding; None if the task has no padding.
  """

  loss: float
  accuracy: float
  accuracy_masked: Optional[float] = None
  accuracy_counted: Optional[float] = None


class RoundEvaluation(NamedTuple):
  """The evaluations of a round's weights.

  Attributes:
    test: On all test examples; None between the first round and the last of a run that samples.
    sample: On the sample, which is the same in all rounds; None if the run does not sample.
  """

  test: Optional[Evaluation]
  sample: Optional[Evaluation] = None


def build(
    model: tff.learning.models.FunctionalModel, is_scored: Callable[[Any], Any],
    padding: Optional[int] = None,
) -> Callable[[Any, Sequence[tf.data.Dataset]], Evaluation]:
  """Returns a function from weights and datasets of examples to an `Evaluation`.

  It runs in the TFF context, datasets in parallel, as clients do; results are added up in the order
  of the datasets. See `task.Task` for `is_scored` and `padding`.
  """
  kinds = [is_scored]
  if padding is not None:
    kinds += [lambda y: tf.not_equal(y, padding), lambda y: tf.ones_like(y, tf.bool)]

  weights_type = tff.tensorflow.computation(lambda: tff.learning.models.ModelWeights(
      *tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
  )).type_signature.result
  examples_type = local_training.examples_type(model)

  @tff.tensorflow.computation(weights_type, examples_type)
  def measure(weights, examples):
    # `Dataset.reduce` would have TensorFlow optimize the model's graph in every call, which took
    # longer than the forward pass of 250 sequences.
    x, y = local_training.examples_of(examples)
    output = model.predict_on_batch((weights.trainable, weights.non_trainable), x, training=False)
    size = tf.shape(y, tf.int64)[0]
    counts = tf.stack([kind(y) for kind in kinds])
    agrees = tf.equal(predictions.predicted_labels(output, y), y)
    not_first = tf.range(1, tf.rank(counts))
    # The mean over no examples is not a number.
    loss = tf.math.multiply_no_nan(model.loss(output, y), tf.cast(size, tf.float32))
    right = tf.math.count_nonzero(tf.logical_and(agrees, counts), not_first)
    return loss, size, right, tf.math.count_nonzero(counts, not_first)

  @tff.federated_computation(
      tff.FederatedType(weights_type, tff.SERVER), tff.FederatedType(examples_type, tff.CLIENTS)
  )
  def measure_all(weights, examples):
    sent = tff.federated_broadcast(weights)
    return tff.federated_sum(tff.federated_map(measure, (sent, examples)))

  def evaluate(weights, shards):
    loss, num_examples, right, scored = measure_all(weights, list(shards))
    fractions = [int(hits) / max(int(labels), 1) for hits, labels in zip(right, scored)]
    return Evaluation(float(loss) / max(int(num_examples), 1), *fractions)

  return evaluate


def shards_of(
    examples: task_lib.Examples, size: Optional[int] = None, seed: int = 0
) -> list[tf.data.Dataset]:
  """Returns datasets of `size` random examples in all; of all if there are fewer, or if None."""
  x, y = map(tf.convert_to_tensor, examples)
  rows = np.arange(len(x))
  if size is not None and size < len(rows):
    rows = np.sort(np.random.default_rng(seed).permutation(len(rows))[:size])
    x, y = tf.gather(x, rows), tf.gather(y, rows)
  sizes = [len(part) for part in np.array_split(rows, max(-(-len(rows) // _BATCH), 1))]
  # Parts of a tensor, and their datasets, share its memory.
  shards = zip(tf.split(x, sizes), tf.split(y, sizes))
  return [tf.data.Dataset.from_tensor_slices(shard) for shard in shards]


def make_evaluate_fn(
    experiment: experiment_lib.Experiment,
) -> Callable[[int, Any], Optional[RoundEvaluation]]:
  """Returns a run's evaluation function, whose result is None if no evaluation is due.

  The initial weights and the last ones are evaluated on all test examples, so that their difference
  is what the rounds gained. The sample is evaluated each time, so that its curve is of one set.
  """
  settings, test = experiment.settings, experiment.examples.test
  padding = datasets.TASKS[settings.task].padding
  measure = build(experiment.model, experiment.is_scored, padding)
  whole = shards_of(test)
  num = experiment.eval_examples
  sample = None if num is None else shards_of(test, num, experiment.seeds.evaluation)

  def evaluate(rounds_done, weights):
    if not loop.is_due(rounds_done, settings.rounds_per_evaluation, settings.rounds):
      return None
    is_whole = sample is None or rounds_done in (0, settings.rounds)
    return RoundEvaluation(
        measure(weights, whole) if is_whole else None,
        None if sample is None else measure(weights, sample),
    )

  return evaluate
