"""Draws initial weights as Keras and PyTorch do by default.

A round's noise of sigma C / r is as large as the initial weights of the paper's models, so results
depend on their distribution. The paper's code was PyTorch.
"""

from collections.abc import Sequence
import math

import numpy as np


class KerasInitializer:
  """Keras's defaults: Glorot uniform, biases zero, an LSTM's forget gates at bias 1."""

  def __init__(self, seed: int):
    # A seed per draw.
    self._seeds = iter(np.random.SeedSequence(seed).generate_state(64))

  def dense(self, shape: Sequence[int]) -> list[np.ndarray]:
    """Returns a kernel float32[*shape], outputs last, of a dense layer or convolution; and bias."""
    kernel = self._draw('GlorotUniform', shape)
    return [kernel, np.zeros(shape[-1], np.float32)]

  def embedding(self, shape: Sequence[int]) -> np.ndarray:
    """Returns an embedding float32[*shape]."""
    return self._draw('RandomUniform', shape)

  def lstm(self, inputs: int, units: int) -> list[np.ndarray]:
    """Returns kernel float32[I, 4H], recurrent kernel float32[H, 4H], bias float32[4H]."""
    bias = np.zeros(4 * units, np.float32)
    bias[units : 2 * units] = 1  # Keras's unit_forget_bias.
    return [
        self._draw('GlorotUniform', (inputs, 4 * units)),
        self._draw('Orthogonal', (units, 4 * units)),
        bias,
    ]

  def _draw(self, name, shape):
    # Every command's help lists initializers, without TensorFlow.
    import tensorflow as tf  # pylint: disable=g-import-not-at-top

    initializer = getattr(tf.keras.initializers, name)(seed=int(next(self._seeds)) >> 1)
    return initializer(shape, tf.float32).numpy()


class TorchInitializer:
  """PyTorch's defaults: uniform in +-1/sqrt(fan in), biases too; embeddings N(0, 1).

  `torch.nn.Linear` and `Conv2d` draw by `kaiming_uniform_(a=sqrt(5))`, which is that bound;
  `LSTM` has 1/sqrt(units) for all of its weights. For the methods see `KerasInitializer`.
  """

  def __init__(self, seed: int):
    self._rng = np.random.default_rng(seed)

  def dense(self, shape: Sequence[int]) -> list[np.ndarray]:
    fan_in = math.prod(shape[:-1])
    return [self._uniform(shape, fan_in), self._uniform(shape[-1:], fan_in)]

  def embedding(self, shape: Sequence[int]) -> np.ndarray:
    return self._rng.standard_normal(shape, np.float32)

  def lstm(self, inputs: int, units: int) -> list[np.ndarray]:
    gates = 4 * units
    return [
        self._uniform((inputs, gates), units),
        self._uniform((units, gates), units),
        # PyTorch's LSTM has two biases.
        self._uniform((gates,), units) + self._uniform((gates,), units),
    ]

  def _uniform(self, shape, fan_in):
    bound = 1 / math.sqrt(fan_in)
    return self._rng.uniform(-bound, bound, shape).astype(np.float32)


Initializer = KerasInitializer | TorchInitializer

INITIALIZERS = {'keras': KerasInitializer, 'torch': TorchInitializer}
