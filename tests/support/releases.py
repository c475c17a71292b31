"""Releases made up by chance, for tests of masks by past releases."""

import numpy as np

from fedsmp_tff import state as state_lib

SHAPES = [(4,), (2, 3)]
DIM = 10


def release(coordinates, values, stddev):
  """A valid release."""
  return state_lib.Release(
      np.asarray(coordinates, np.int32), np.asarray(values), np.asarray(stddev), True
  )


def some(num=6, k=4, seed=0):
  """`num` releases of k of `DIM` coordinates."""
  rng = np.random.default_rng(seed)
  return [
      release(
          np.sort(rng.permutation(DIM)[:k]), rng.normal(size=k), rng.uniform(0.1, 0.5, size=k)
      )
      for _ in range(num)
  ]


def remembered(sparsifier, releases, dim=DIM):
  """The memory of a sparsifier after these releases."""
  memory = sparsifier.initial_memory(dim)
  for one in releases:
    memory = sparsifier.remember(memory, one)
  return memory
