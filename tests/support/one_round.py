"""One round of an aggregator on vectors, for short tests."""

import numpy as np
import tensorflow_federated as tff

DIM = 40
VECTOR = tff.TensorType(np.float32, [DIM])


def updates(num, scale=1.0, dim=DIM, seed=0):
  """Normal vectors, one a client."""
  rng = np.random.default_rng(seed)
  return [
      (scale * rng.normal(size=dim)).astype(np.float32) for _ in range(num)
  ]


def run(factory, updates, value_type=VECTOR):
  """One round: the state that it started from, and what it put out."""
  process = factory.create(value_type)
  state = process.initialize()
  return state, process.next(state, updates)
