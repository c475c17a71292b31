"""Accuracy of a model on clients' own examples, as a private sum."""

import collections
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import fed_smp
from fedsmp_tff import learning_process
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import state as state_lib

# Shares of right and of wrong labels.
NUM_VALUES = 2
_BATCH = 250


def build_private_evaluation(
    model: tff.learning.models.FunctionalModel,
    mechanism: mechanism_lib.Mechanism,
    *,
    is_scored: Callable[[tf.Tensor], tf.Tensor] = lambda y: tf.ones_like(y, tf.bool),
    dropout: float = 0.0,
    seed: Optional[int] = None,
) -> tff.Computation:
  """Builds a computation that measures a classifier's accuracy on a cohort of clients.

  Each client finds the share a of its scored labels that the model names, and sends
  C (a, 1 - a), of norm at most C, through `MaskedPrivateSum`: clip, noise share, integers, one
  secure sum. However many examples a client has, it counts as one. With the noisy sums R and
  W, the accuracy is R / (R + W). A client without scored labels sends noise alone and is not part
  of the mean: R + W is a noisy count of the others.

  The accuracy is a ratio, so it is the mean over clients but for a bias of about 1/r. R / r is
  unbiased, but has the number of sampled clients in it: with r = 100 at an accuracy of 0.9, a
  standard deviation of 0.09 by sampling where the ratio has 0.03 at most. The noise in (R, W)
  along the ratio's gradient is sigma sqrt(a^2 + (1 - a)^2) / r, at most sigma / r; nothing is cut
  at 0 or 1, which would bias means over evaluations. Sampling adds at most sqrt(a (1 - a) / r).

  Each evaluation is one more release on the same clients: `PrivacySpec.evaluation` is its
  specification, whose `mechanism()` is that of this computation and whose `sampler()` draws its
  cohorts, never those of rounds.

  >>> import dataclasses
  >>> from fedsmp_tff.privacy import spec as spec_lib
  >>> spec = spec_lib.PrivacySpec(
  ...     population=6000, clients_per_round=100, rounds=180, noise_multiplier=1.4,
  ...     clipping_norm=1.0, delta=1e-5)
  >>> evaluations = dataclasses.replace(spec, rounds=5)
  >>> spec = dataclasses.replace(spec, evaluation=evaluations)
  >>> round(spec.epsilon(), 3), round(spec.epsilon(evaluations=0), 3)
  (0.762, 0.752)

  Args:
    model: Its outputs' last dimension is that of classes; labels are integers.
    mechanism: Of the sum of two values; C is any.
    is_scored: Maps labels to which of them count, bool of the same shape; all by default.
    dropout: See `build_fed_smp`.
    seed: For simulation only: see `build_fed_smp`, whose data this takes then. Its streams are
      others than those of training with the same seed.

  Returns:
    A computation of the model's weights (`ModelWeights`), the number of the evaluation, int32,
    both at the server, and the examples of exactly `mechanism.seats` clients. Its result:
      accuracy: float64; NaN if fewer than `min_reporting` reported, or noise exceeds the count.
      stddev: float64, that of the noise in `accuracy`, estimated from the release.

  Raises:
    ValueError: If `mechanism` has no fixed clip, or is about another number of values,
      `dropout` is out of its range, or `is_scored` does not return what it should.
  """
  if not mechanism.private or mechanism.adaptive_clipping or mechanism.clipping_schedule:
    raise ValueError(
        '`mechanism` must have a fixed `clipping_norm`: values are scaled to it. Found'
        f' {mechanism}.'
    )
  if mechanism.client_metrics:
    raise ValueError(
        '`mechanism` must have no `client_metrics`, which are exact; drop them.'
    )
  if not 0 <= dropout < 1:
    raise ValueError(f'`dropout` must be in [0, 1). Found {dropout}.')
  steps = _Evaluation(model, mechanism, is_scored, dropout, seed)

  start = tff.tensorflow.computation(steps.start, np.int32)
  state_type = start.type_signature.result
  weights_type = learning_process.weights_type_of(model)
  data_type = learning_process.data_type_of(model, tagged=seed is not None)
  client_report = tff.tensorflow.computation(
      steps.client_report, (data_type, weights_type, state_type)
  )
  finish = tff.tensorflow.computation(
      steps.finish, (state_type, client_report.type_signature.result)
  )

  @tff.federated_computation(
      tff.FederatedType(weights_type, tff.SERVER),
      tff.FederatedType(np.int32, tff.SERVER),
      tff.FederatedType(data_type, tff.CLIENTS),
  )
  def evaluate(weights, number, client_data):
    state = tff.federated_map(start, number)
    reports = tff.federated_map(
        client_report,
        (client_data, tff.federated_broadcast(weights), tff.federated_broadcast(state)),
    )
    return tff.federated_map(finish, (state, steps.round.secure_sum(reports)))

  return evaluate


class _Evaluation:
  """The steps of an evaluation as TensorFlow functions."""

  def __init__(self, model, mechanism, is_scored, dropout, seed):
    self._model = model
    self._is_scored = is_scored
    self._dropout = dropout
    self._seed = seed
    self.round = fed_smp.FedSmpRound(
        sparsifiers.Dense(), mechanism, [tf.TensorShape([NUM_VALUES])]
    )

  def start(self, number: tf.Tensor) -> state_lib.FedSmpState:
    """Returns the public state of an evaluation."""
    state = self.round.choose(self.round.initial_state(self._seed))
    return state._replace(
        seed=randomness.derive(state.seed, randomness.Stream.EVALUATION), round_num=number
    )

  def client_report(self, data, weights, state) -> collections.OrderedDict[str, tf.Tensor]:
    """Evaluates, and makes the report."""
    client_seed, examples = learning_process.seed_and_examples(self._seed, data, state)
    report = self.round.report(
        state.clipping_norm * self._shares(examples, weights),
        state,
        randomness.derive(client_seed, randomness.Stream.NOISE),
    )
    return fed_smp.dropped_out(report, self._dropout, client_seed)

  def finish(self, state, total) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns what is released of the sum."""
    release, *_ = self.round.release(total, state)
    count = tf.reduce_sum(release.values)
    shares = release.values / count
    accuracy = shares[0]
    # Along the gradient of R / (R + W), (W, -R) / (R + W)^2.
    stddev = tf.norm(tf.clip_by_value(shares, 0.0, 1.0)) * release.stddev[0] / count
    valid = release.valid & (count > 0)
    nan = tf.constant(np.nan, tf.float64)
    return collections.OrderedDict(
        accuracy=tf.where(valid, accuracy, nan), stddev=tf.where(valid, stddev, nan)
    )

  def _shares(self, examples: Any, weights) -> tf.Tensor:
    """Returns a client's shares of right and wrong labels, float64[2]; zeros without labels."""
    weights = (weights.trainable, weights.non_trainable)

    def add_batch(totals, batch):
      right, scored = totals
      x, y = batch
      output = self._model.predict_on_batch(weights, x, training=False)
      counts = tf.convert_to_tensor(self._is_scored(y))
      if counts.dtype != tf.bool or counts.shape.rank != y.shape.rank:
        # `y != padding` compares identities in TFF's graphs, and is one `True`.
        raise ValueError(
            '`is_scored` must return a bool for each label, as `tf.not_equal` does. Found'
            f' {counts}.'
        )
      named = tf.equal(tf.argmax(output, axis=-1, output_type=y.dtype), y)
      return (
          right + tf.math.count_nonzero(tf.logical_and(named, counts)),
          scored + tf.math.count_nonzero(counts),
      )

    nothing = (tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    right, scored = examples.batch(_BATCH).reduce(nothing, add_batch)
    counts = tf.cast(tf.stack([right, scored - right]), tf.float64)
    return tf.math.divide_no_nan(counts, tf.cast(scored, tf.float64))
