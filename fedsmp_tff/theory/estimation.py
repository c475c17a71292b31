"""Estimates the constants of Theorem 2 and the loss of top-k from public data alone.

Public examples are divided into clients of realistic size, which train for a few
rounds of FedAvg; the gradients and updates of these rounds give the estimates. They describe
that part of training: the theorem's constants are bounds everywhere, and are larger.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import flattening
from fedsmp_tff import local_training
from fedsmp_tff import randomness
from fedsmp_tff.theory import theorem_2

_FEWEST_CLIENTS = 2
_POINTS = 400


@dataclasses.dataclass(frozen=True)
class Estimate:
  """The constants of Theorem 2 and the loss of top-k, as estimated from public data.

  >>> constants = theorem_2.Constants(
  ...     smoothness=1.0, gradient_variance=0.1, dissimilarity=1.0, dissimilarity_offset=0.1,
  ...     initial_gap=2.0)
  >>> found = Estimate(
  ...     constants, dim=100, kept=np.array([1, 10, 100]), lost=np.array([0.9, 0.5, 0.0]),
  ...     update_norm=0.3)
  >>> found.topk_variance(num_kept=10), found.topk_variance(num_kept=100)
  (0.5, 0.0)

  Attributes:
    constants: The constants of Assumptions 1 to 3.
    dim: d.
    kept: The k at which `lost` was measured, int64[n], ascending, from 1 to d.
    lost: float64[n]: the share of the squared norm of the clients' mean update that lies
      outside the k coordinates that an update on other public examples moves most.
    update_norm: The median norm of a client's update, over all d coordinates.
  """

  constants: theorem_2.Constants
  dim: int
  kept: np.ndarray
  lost: np.ndarray
  update_norm: float

  def topk_variance(self, num_kept: int) -> float:
    """phi_k of top-k as measured, between the measured k by interpolation of log k."""
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
  """Trains on public data, half of it as the clients', half of it as the server's.

  - L: the largest ||grad f(x) - grad f(y)|| / ||x - y|| from one round's weights to the next's.
  - zeta^2: the variance of minibatch gradients around their client's, mean over clients and
    rounds; 0 if a client has no more than one batch.
  - kappa^2: mean ||grad f_i||^2 - ||grad f||^2, mean over rounds; with it beta^2 = 1 is enough.
    These are clients of one distribution: real ones that differ more have a larger kappa^2.
  - e_0: the loss before training, taking f* to be 0.

  Args:
    model: The model, with its initial weights.
    public_examples: A structure `(x, y)` of arrays whose first dimension counts examples.
    training: The clients' local training.
    client_examples: Number of examples of a client.
    rounds: Number of rounds, at least 1.
    seed: Seed of the split and of shuffling.
    over: Wraps the iteration over rounds, for a progress bar.

  Returns:
    The estimate.

  Raises:
    ValueError: If the public examples don't make two clients, or the loss is not finite.
  """
  x, y = tf.nest.map_structure(np.asarray, public_examples)
  order = np.random.default_rng(seed).permutation(len(y))
  half = len(y) // 2
  num_clients = (len(y) - half) // client_examples
  if num_clients < _FEWEST_CLIENTS:
    raise ValueError(
        f'`client_examples`={client_examples} makes {num_clients} clients of half of the'
        f' {len(y)} public examples, and {_FEWEST_CLIENTS} are needed: lower it, or take more'
        ' public examples.'
    )
  of_server = x[order[:half]], y[order[:half]]
  of_clients = [
      (x[rows], y[rows])
      for rows in np.array_split(order[half : half + num_clients * client_examples], num_clients)
  ]
  measure = _Measurements(model, training)
  weights = measure.initial_weights
  base = tf.constant([seed, 0], tf.int64)
  points, lost, norms = [measure.gradients(weights, of_clients)], [], []
  for t in over(range(rounds)):
    seeds = [
        randomness.fold_in(randomness.fold_in(base, t), i) for i in range(num_clients + 1)
    ]
    public = measure.update(weights, of_server, t, seeds[0])
    updates = [
        measure.update(weights, examples, t, one)
        for examples, one in zip(of_clients, seeds[1:])
    ]
    norms += [np.linalg.norm(update) for update in updates]
    update = np.mean(updates, axis=0)
    kept, share = _lost(update, public)
    lost.append(share)
    weights = weights - update
    points.append(measure.gradients(weights, of_clients))
  found = theorem_2.Constants(
      smoothness=float(max(
          np.linalg.norm(one.mean - other.mean) / np.linalg.norm(one.weights - other.weights)
          for one, other in zip(points, points[1:])
      )),
      gradient_variance=float(np.mean([point.within for point in points])),
      dissimilarity=1.0,
      dissimilarity_offset=float(np.mean([point.between for point in points])),
      initial_gap=points[0].loss,
  )
  return Estimate(found, len(update), kept, np.mean(lost, axis=0), float(np.median(norms)))


class _Point(NamedTuple):
  """The measurements at some weights.

  Attributes:
    weights: float32[d].
    loss: The mean loss over clients.
    mean: The mean gradient, float32[d].
    within: Squared distance of a minibatch's gradient from its client's, on average.
    between: Squared distance of a client's gradient from the mean one, on average.
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
  """

  def __init__(
      self,
      model: tff.learning.models.FunctionalModel,
      training: local_training.LocalTraining,
  ):
    trainable, non_trainable = tf.nest.map_structure(
        tf.convert_to_tensor, model.initial_weights
    )
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
      start = tff.learning.models.ModelWeights(
          flattener.unflatten(weights), non_trainable
      )
      hparams = training.hparams_of_round(
          training.initial_hparams(start.trainable), round_num
      )
      return flattener.flatten(training.train(model, start, (x, y), hparams, seed))

    self._gradient = gradient
    self._update = update

  def gradients(self, weights: np.ndarray, of_clients: Sequence[Any]) -> _Point:
    """Measures the gradients of all clients at some weights."""
    losses, within, squared, total = [], [], [], 0.0
    for x, y in of_clients:
      parts = [
          self._gradient(tf.constant(weights), *map(tf.constant, (x[rows], y[rows])))
          for rows in np.array_split(np.arange(len(y)), -(-len(y) // self._batch_size))
      ]
      gradients = np.stack([gradient for _, gradient in parts])
      own = gradients.mean(axis=0)
      losses += [float(loss) for loss, _ in parts]
      within.append(_squared_norm(gradients - own) / len(parts))
      squared.append(_squared_norm(own))
      total = total + own / len(of_clients)
    return _Point(
        weights, float(np.mean(losses)), total, float(np.mean(within)),
        max(0.0, float(np.mean(squared)) - _squared_norm(total)),
    )

  def update(
      self, weights: np.ndarray, examples: Any, round_num: int, seed: tf.Tensor
  ) -> np.ndarray:
    """The update of local training from some weights in some round."""
    x, y = map(tf.constant, examples)
    return self._update(tf.constant(weights), x, y, tf.constant(round_num), seed).numpy()


def _lost(update: np.ndarray, public: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """For some k, the share of `update` outside of the k largest coordinates of `public`."""
  kept = np.unique(np.geomspace(1, len(update), _POINTS).round().astype(np.int64))
  squares = np.square(update, dtype=np.float64)
  inside = np.cumsum(squares[np.argsort(-np.abs(public), kind='stable')])
  return kept, np.clip(1 - inside[kept - 1] / inside[-1], 0.0, 1.0)


def _squared_norm(values: np.ndarray) -> float:
  return float(np.sum(np.square(values, dtype=np.float64)))
