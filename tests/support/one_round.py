"""One round of an aggregator on vectors, for short tests."""

import numpy as np
import tensorflow_federated as tff

DIM = 40
VECTOR = tff.TensorType(np.float32, [DIM])


def updates(num, scale=1.0, dim=DIM, seed=0):
  """Returns normal vectors, one per client."""
  return list((scale * np.random.default_rng(seed).normal(size=(num, dim))).astype(np.float32))


def run(factory, updates, value_type=VECTOR):
  """One round: the state that it started from, and what it put out."""
  process = factory.create(value_type)
  state = process.initialize()
  return state, process.next(state, updates)
