"""Estimates the constants of Theorem 2 and the loss of top-k from public data alone.

Public examples are divided into clients of realistic size, which train for a few rounds of FedAvg;
the gradients and updates of these rounds give the estimates. They describe only these rounds: the
theorem's constants are global bounds, and larger.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import errors
from fedsmp_tff import flattening
from fedsmp_tff import local_training
from fedsmp_tff import randomness
from fedsmp_tff.theory import theorem_2

_POINTS = 400


@dataclasses.dataclass(frozen=True)
class Estimate:
  """The constants of Theorem 2 and the loss of top-k, estimated from public data.

  Attributes:
    constants: The constants of Assumptions 1 to 3.
    dim: d.
    kept: Values of k at which `lost` was measured, int64[n], ascending, from 1 to d.
    lost: Fraction of the squared norm of the clients' mean update outside the k largest coordinates
      of an update on other public examples, float64[n].
    update_norm: The median norm of a client's update, over all d coordinates.
  """

  constants: theorem_2.Constants
  dim: int
  kept: np.ndarray
  lost: np.ndarray
  update_norm: float

  def topk_variance(self, num_kept: int) -> float:
    """Returns the measured phi_k of top-k, interpolated over log k."""
    return float(np.interp(np.log(num_kept), np.log(self.kept), self.lost))


def estimate(
    model: tff.learning.models.FunctionalModel,
    public_examples: Any,
    training: local_training.LocalTraining,
    client_examples: int,
    rounds: int,
    seed: int,
    over: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Estimate:
  """Trains on public data, half of them for clients and half for the server.

  - L: the largest ||grad f(x) - grad f(y)|| / ||x - y|| between the weights x, y of two successive
    rounds.
  - zeta^2: the variance of minibatch gradients around their client's, mean over clients and rounds;
    0 if a client has a single batch.
  - kappa^2: mean ||grad f_i||^2 - ||grad f||^2, mean over rounds, for beta^2 = 1. These clients
    have one distribution: real clients, which differ more, have a larger kappa^2.
  - e_0: the loss before training, with f* = 0.

  Args:
    model: The model, with its initial weights.
    public_examples: Arrays whose first dimension counts examples, in a structure that
      `local_training.x_and_y` takes.
    training: The clients' local training.
    client_examples: Number of examples of a client.
    rounds: Number of rounds, at least 1.
    seed: Seed of the split and of shuffling.
    over: Wrapper of the iteration over rounds, for a progress bar.

  Raises:
    ValueError: If the public examples don't make two clients, or the loss is not finite.
  """
  x, y = local_training.x_and_y(tf.nest.map_structure(np.asarray, public_examples))
  order = np.random.default_rng(seed).permutation(len(y))
  half = len(y) // 2
  num_clients = (len(y) - half) // client_examples
  if num_clients < 2:
    raise errors.ArgumentError(
        'client_examples',
        f'must be lower: with {client_examples}, half of the {len(y)} public examples are'
        f' {num_clients} clients, but 2 are required. Lower it, or use more public examples.',
    )
  server = x[order[:half]], y[order[:half]]
  clients = [
      (x[rows], y[rows])
      for rows in np.array_split(order[half : half + num_clients * client_examples], num_clients)
  ]
  measure = _Measurements(model, training)
  weights = measure.initial_weights
  base = tf.constant([seed, 0], tf.int64)
  points, lost, norms = [measure.gradients(weights, clients)], [], []
  for t in over(range(rounds)):
    round_seed = randomness.fold_in(base, t)
    seeds = [randomness.fold_in(round_seed, i) for i in range(num_clients + 1)]
    public, *updates = [
        measure.update(*map(tf.constant, (weights, *examples, t)), client_seed).numpy()
        for examples, client_seed in zip([server, *clients], seeds)
    ]
    norms += [np.linalg.norm(update) for update in updates]
    update = np.mean(updates, axis=0)
    kept, lost_of_round = _lost(update, public)
    lost.append(lost_of_round)
    weights = weights - update
    points.append(measure.gradients(weights, clients))
  constants = theorem_2.Constants(
      smoothness=float(max(
          np.linalg.norm(a.mean - b.mean) / np.linalg.norm(a.weights - b.weights)
          for a, b in zip(points, points[1:])
      )),
      gradient_variance=float(np.mean([point.within for point in points])),
      dissimilarity=1.0,
      dissimilarity_offset=float(np.mean([point.between for point in points])),
      initial_gap=points[0].loss,
  )
  return Estimate(constants, len(update), kept, np.mean(lost, axis=0), float(np.median(norms)))


class _Point(NamedTuple):
  """The measurements at some weights.

  Attributes:
    weights: float32[d].
    loss: The mean loss over clients.
    mean: The mean gradient, float32[d].
    within: Mean squared distance of a minibatch's gradient from its client's.
    between: Mean squared distance of a client's gradient from the mean gradient.
  """

  weights: np.ndarray
  loss: float
  mean: np.ndarray
  within: float
  between: float


class _Measurements:
  """Gradients and updates of a model, all as vectors float32[d].

  Attributes:
    initial_weights: The trainable weights with which the model starts.
    update: Returns the update of local training, from tensors: weights, x, y, round and seed.
  """

  def __init__(
      self, model: tff.learning.models.FunctionalModel, training: local_training.LocalTraining
  ):
    trainable, non_trainable = tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
    flattener = flattening.Flattener(tff.types.tensorflow_to_type(
        tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), trainable)
    ))
    self.initial_weights = flattener.flatten(trainable).numpy()
    self._batch_size = training.batch_size

    @tf.function(reduce_retracing=True)
    def gradient(weights, x, y):
      with tf.GradientTape() as tape:
        tape.watch(weights)
        output = model.predict_on_batch(
            (flattener.unflatten(weights), non_trainable), x, training=True
        )
        loss = model.loss(output, y)
      return loss, tape.gradient(loss, weights)

    @tf.function(reduce_retracing=True)
    def update(weights, x, y, round_num, seed):
      start = tff.learning.models.ModelWeights(flattener.unflatten(weights), non_trainable)
      hparams = training.hparams_of_round(training.initial_hparams(start.trainable), round_num)
      return flattener.flatten(training.train(model, start, (x, y), hparams, seed))

    self._gradient = gradient
    self.update = update

  def gradients(self, weights: np.ndarray, clients: Sequence[Any]) -> _Point:
    """Measures the gradients of all clients at some weights."""
    losses, within, squared, mean = [], [], [], 0.0
    for x, y in clients:
      parts = [
          self._gradient(*map(tf.constant, (weights, x[rows], y[rows])))
          for rows in np.array_split(np.arange(len(y)), -(-len(y) // self._batch_size))
      ]
      gradients = np.stack([gradient for _, gradient in parts])
      client_mean = gradients.mean(axis=0)
      losses += [float(loss) for loss, _ in parts]
      within.append(_squared_norm(gradients - client_mean) / len(parts))
      squared.append(_squared_norm(client_mean))
      mean = mean + client_mean / len(clients)
    between = max(0.0, float(np.mean(squared)) - _squared_norm(mean))
    return _Point(weights, float(np.mean(losses)), mean, float(np.mean(within)), between)


def _lost(update: np.ndarray, public: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns values of k, and the fraction of `update` outside the top k of `public`."""
  kept = np.unique(np.geomspace(1, len(update), _POINTS).round().astype(np.int64))
  squares = np.square(update, dtype=np.float64)
  inside = np.cumsum(squares[np.argsort(-np.abs(public), kind='stable')])
  return kept, np.clip(1 - inside[kept - 1] / inside[-1], 0.0, 1.0)


def _squared_norm(values: np.ndarray) -> float:
  return float(np.sum(np.square(values, dtype=np.float64)))
