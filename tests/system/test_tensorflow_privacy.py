"""Tests against TensorFlow Privacy's query in TFF's own aggregator."""

import math

import numpy as np
import pytest
import tensorflow_federated as tff
import tensorflow_privacy

from fedsmp_tff import sparsifiers
from tests.support import one_round
from tests.support import processes

pytestmark = pytest.mark.usefixtures('without_determinism')


def test_dp_fedavg_s_aggregate_is_that_of_its_query():
  dim, clients, clip, sigma = 200_000, 4, 0.5, 0.002
  # Norms of a quarter of the clip to twice as much: some are clipped.
  directions = np.random.default_rng(0).normal(size=(clients, dim))
  directions /= np.linalg.norm(directions, axis=1, keepdims=True)
  norms = clip * np.array([[0.25], [0.75], [1.5], [2.0]])
  expected = (directions * np.minimum(norms, clip)).mean(axis=0)
  stddev = clip * sigma / clients
  query = tensorflow_privacy.GaussianSumQuery(l2_norm_clip=clip, stddev=clip * sigma)
  for factory in (
      processes.factory(
          sparsifiers.Dense(), clients, clipping_norm=clip, noise_multiplier=sigma, seed=1
      ),
      tff.aggregators.DifferentiallyPrivateFactory(
          tensorflow_privacy.NormalizedQuery(query, denominator=clients)
      ),
  ):
    _, output = one_round.run(
        factory, list((directions * norms).astype(np.float32)), tff.TensorType(np.float32, [dim])
    )
    noise = output.result - expected
    # Six standard deviations (2e-9), as their noise is fresh: along `expected`, whose norm is 0.2,
    # noise of 2.5e-4 shows a mean that is wrong by 0.8 %.
    assert abs(noise @ expected) <= 6 * stddev * np.linalg.norm(expected)
    # A mean of squares of dim normal values has a relative standard deviation of sqrt(2 / dim),
    # 0.32 %. Noise that is 5 % too small has 9.75 % less variance.
    assert np.mean(noise**2) == pytest.approx(stddev**2, rel=6 * math.sqrt(2 / dim))
