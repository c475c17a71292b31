"""Loss and accuracy of weights on test examples."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import local_training
from fedsmp_tff.program import loop
from tasks import datasets
from tasks.datasets import task as task_lib
from tasks.training import experiment as experiment_lib

# A shard's, at most: as fast as larger ones (on two processors 1.7 s for 2,000 sequences of 80
# characters, the speed of a matrix product), and enough shards for many processors. A fixed
# number, so that sums of floats don't depend on the machine.
_BATCH = 125


class Evaluation(NamedTuple):
  """A measurement on test examples.

  Attributes:
    loss: The model's own loss, mean over shards weighted by their examples.
    accuracy: Share of the scored labels that the model names, in [0, 1].
    accuracy_masked: The same of the labels that are no padding; None without padding.
    accuracy_counted: The same of all labels, padding included; None without padding.
  """

  loss: float
  accuracy: float
  accuracy_masked: Optional[float] = None
  accuracy_counted: Optional[float] = None


def build(
    model: tff.learning.models.FunctionalModel,
    is_scored: Callable[[Any], Any],
    is_padding: Optional[Callable[[Any], Any]] = None,
) -> Callable[[Any, Sequence[tf.data.Dataset]], Evaluation]:
  """Returns a function from weights and datasets of examples to an `Evaluation`.

  It runs where TFF's computations do, a dataset beside the other, as clients do; the
  results are added up in the order of the datasets.

  Args:
    model: The model.
    is_scored: As `Task.is_scored`.
    is_padding: As `Task.is_padding`.
  """
  kinds = [is_scored]
  if is_padding is not None:
    kinds += [lambda labels: tf.logical_not(is_padding(labels)), lambda y: tf.ones_like(y, tf.bool)]

  @tff.tensorflow.computation
  def initial_weights():
    return tff.learning.models.ModelWeights(
        *tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
    )

  examples_type = tff.SequenceType(
      tff.types.tensorflow_to_type(local_training.element_spec(model))
  )

  weights_type = initial_weights.type_signature.result

  @tff.tensorflow.computation(weights_type, examples_type)
  def measure(weights, examples):
    # No `Dataset.reduce`: it has TensorFlow optimize the model's graph in every call, which
    # took longer than the forward pass of 250 sequences.
    x, y = local_training.examples_of(examples)
    output = model.predict_on_batch(
        (weights.trainable, weights.non_trainable), x, training=False
    )
    size = tf.shape(y, tf.int64)[0]
    counts = tf.stack([kind(y) for kind in kinds])
    agrees = tf.equal(tf.argmax(output, axis=-1, output_type=tf.int32), y)
    not_first = tf.range(1, tf.rank(counts))
    # The mean over no examples is not a number.
    loss = tf.math.multiply_no_nan(model.loss(output, y), tf.cast(size, tf.float32))
    return (
        loss,
        size,
        tf.math.count_nonzero(tf.logical_and(agrees, counts), not_first),
        tf.math.count_nonzero(counts, not_first),
    )

  @tff.federated_computation(
      tff.FederatedType(weights_type, tff.SERVER),
      tff.FederatedType(examples_type, tff.CLIENTS),
  )
  def measure_all(weights, examples):
    return tff.federated_sum(
        tff.federated_map(
            measure, (tff.federated_broadcast(weights), examples)
        )
    )

  def evaluate(weights, shards):
    loss, num_examples, right, scored = measure_all(weights, list(shards))
    shares = [int(hits) / max(int(labels), 1) for hits, labels in zip(right, scored)]
    return Evaluation(float(loss) / max(int(num_examples), 1), *shares)

  return evaluate


def shards_of(
    examples: task_lib.Examples, size: Optional[int] = None, seed: int = 0
) -> list[tf.data.Dataset]:
  """Datasets of `size` random examples in all; of all if None or more than there are."""
  x, y = examples
  if size is not None and size < len(x):
    chosen = np.sort(np.random.default_rng(seed).permutation(len(x))[:size])
    x, y = x[chosen], y[chosen]
  return [
      tf.data.Dataset.from_tensor_slices(shard)
      for shard in task_lib.split_evenly(x, y, max(-(-len(x) // _BATCH), 1))
  ]


def of_run(
    experiment: experiment_lib.Experiment,
) -> Callable[[int, Any], Optional[Evaluation]]:
  """Returns what measures the weights after a round, where that is due."""
  settings, test = experiment.settings, experiment.examples.test
  task = datasets.TASKS[settings.task]
  measure = build(experiment.model, experiment.is_scored, task.is_padding)
  whole = shards_of(test)
  part = shards_of(test, experiment.eval_examples, experiment.seeds.evaluation)

  def evaluate(rounds_done, weights):
    if not loop.is_due(rounds_done, settings.rounds_per_evaluation, settings.rounds):
      return None
    return measure(weights, whole if rounds_done == settings.rounds else part)

  return evaluate
