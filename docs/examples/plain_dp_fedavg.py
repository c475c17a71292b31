"""The paper's DP-FedAvg on Fashion-MNIST in plain TensorFlow: why its accuracy differs from ours.

  python -m docs.examples.plain_dp_fedavg --seed=1                   # As this project reads the paper.
  python -m docs.examples.plain_dp_fedavg --seed=1 --standardize     # Another reading of its inputs.

It shares no code with this project but the reader of the images. Exactly 100 of 6,000 clients with
ten images each train for ten epochs from PyTorch's initial weights; their updates are clipped to
C = 1, and the sum has noise with sigma = 1.4. With --p below 1 it is rand-k without the factor d/k.
An update that is not finite spreads to the weights, as it would in a program that does not check.
docs/results.md has what it found. It is a simulation without any guarantee.
"""

import argparse

import numpy as np
import tensorflow as tf

from tasks.datasets import fashion_mnist

_CLIENTS, _SAMPLED, _EPOCHS, _MOMENTUM, _RATE, _SIGMA, _CLIP = 6000, 100, 10, 0.5, 0.125, 1.4, 1.0
_MEAN, _STDDEV = 0.2860, 0.3530  # Of Fashion-MNIST's pixels: a habit of PyTorch programs.
_SHAPES = (
    (5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (3136, 512), (512,), (512, 10), (10,)
)
_INPUTS = (25, 25, 800, 800, 3136, 3136, 512, 512)
_ENDS = np.cumsum([np.prod(shape) for shape in _SHAPES])


def _logits(weights, x):
  for kernel, bias in (weights[:2], weights[2:4]):
    x = tf.nn.relu(tf.nn.max_pool2d(tf.nn.conv2d(x, kernel, 1, 'SAME') + bias, 2, 2, 'SAME'))
  hidden = tf.nn.relu(tf.reshape(x, [-1, _SHAPES[4][0]]) @ weights[4] + weights[5])
  return hidden @ weights[6] + weights[7]


class _Trainer:
  """Trains and evaluates flat weights."""

  def __init__(self):
    self._weights = [tf.Variable(tf.zeros(shape)) for shape in _SHAPES]
    self._momentum = [tf.Variable(tf.zeros(shape)) for shape in _SHAPES]

  def load(self, flat: np.ndarray, keep_momentum: bool = False) -> None:
    for weight, momentum, part in zip(self._weights, self._momentum, np.split(flat, _ENDS[:-1])):
      weight.assign(part.reshape(weight.shape))
      if not keep_momentum:
        momentum.assign(tf.zeros_like(momentum))

  def flat(self) -> np.ndarray:
    return np.concatenate([weight.numpy().ravel() for weight in self._weights])

  @tf.function
  def step(self, x: tf.Tensor, y: tf.Tensor, rate: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
      losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, _logits(self._weights, x))
      loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, self._weights)
    for weight, momentum, gradient in zip(self._weights, self._momentum, gradients):
      momentum.assign(_MOMENTUM * momentum + gradient)
      weight.assign_sub(rate * momentum)

  @tf.function
  def num_right(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.math.count_nonzero(tf.argmax(_logits(self._weights, x), 1, y.dtype) == y)


def _parse() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--standardize', action='store_true', help='inputs of mean 0 and variance 1')
  parser.add_argument('--no_decay', action='store_true', help='no decay of the learning rate')
  parser.add_argument('--keep_momentum', action='store_true', help='one optimizer for all clients')
  parser.add_argument('--replacement', action='store_true', help='minibatches with replacement')
  parser.add_argument('--skip', action='store_true', help='leaves out updates that are not finite')
  parser.add_argument('--p', type=float, default=1.0, help='compression ratio of rand-k')
  parser.add_argument('--rounds', type=int, default=180)
  parser.add_argument('--rounds_per_evaluation', type=int, default=3)
  parser.add_argument('--seed', type=int, default=1)
  parser.add_argument('--data_dir', default=None, help='directory of the images')
  return parser.parse_args()


def main() -> None:
  """Trains with the flags of the command line, and prints accuracies."""
  args = _parse()
  rng, trainer = np.random.default_rng(args.seed), _Trainer()
  (train_x, train_y), test = fashion_mnist.read(args.data_dir)

  def inputs(images):
    x = images.astype(np.float32).reshape(-1, 28, 28, 1) / 255
    return (x - _MEAN) / _STDDEV if args.standardize else x

  clients = np.array_split(rng.permutation(len(train_x)), min(_CLIENTS, len(train_x)))
  weights = np.concatenate([
      rng.uniform(-1, 1, np.prod(shape)).astype(np.float32) / num**0.5
      for shape, num in zip(_SHAPES, _INPUTS)
  ])
  num_kept, best = max(1, round(args.p * len(weights))), 0.0
  for round_num in range(args.rounds + 1):
    if round_num % args.rounds_per_evaluation == 0:
      trainer.load(weights)
      parts = np.array_split(np.arange(len(test[0])), -(-len(test[0]) // 500))
      right = sum(int(trainer.num_right(inputs(test[0][i]), test[1][i])) for i in parts)
      accuracy = 100 * right / len(test[0])
      best = max(best, accuracy)
      print(f'round {round_num}: accuracy {accuracy:.2f} %, best {best:.2f} %', flush=True)
    rate = tf.constant(_RATE if args.no_decay else _RATE * 0.99**round_num, tf.float32)
    kept = np.sort(rng.choice(len(weights), num_kept, replace=False))
    total, norms = np.zeros(num_kept, np.float32), []
    for client in rng.choice(len(clients), min(_SAMPLED, len(clients)), replace=False):
      trainer.load(weights, args.keep_momentum)
      own = clients[client]
      for _ in range(_EPOCHS):
        rows = rng.choice(own, len(own), replace=args.replacement)
        trainer.step(inputs(train_x[rows]), train_y[rows], rate)
      update = (weights - trainer.flat())[kept]
      norms.append(np.linalg.norm(update))
      with np.errstate(invalid='ignore'):
        update = update * np.float32(min(1, _CLIP / norms[-1]))
      if np.isfinite(update).all() or not args.skip:
        total += update
    if not np.isfinite(norms).all():
      lost = np.count_nonzero(~np.isfinite(norms))
      print(f'round {round_num}: updates of {lost} clients are not finite', flush=True)
    total += rng.normal(scale=_SIGMA * _CLIP, size=num_kept).astype(np.float32)
    weights[kept] -= total / _SAMPLED


if __name__ == '__main__':
  main()
