"""Tests against TensorFlow Privacy: its accountant, and its query in TFF's own aggregator."""

import math
import re

import numpy as np
import pytest
import tensorflow_federated as tff
import tensorflow_privacy

from fedsmp_tff import sparsifiers
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import spec as spec_lib
from tests.support import one_round
from tests.support import processes

pytestmark = pytest.mark.usefixtures('without_determinism')


@pytest.mark.parametrize(
    'n, r, rounds, sigma, delta',
    [
        (6000, 100, 180, 1.4, 6000**-1.1),  # The paper's Fashion-MNIST: 0.744.
        (6000, 100, 180, 1.0, 6000**-1.1),
        (1180, 10, 400, 0.6, 1180**-1.1),
        (50_000, 500, 1000, 2.0, 1e-6),
        (1000, 1000, 20, 10.0, 1e-5),
    ],
)
def test_renyi_dp_of_poisson_sampling_is_its_statement(n, r, rounds, sigma, delta):
  statement = tensorflow_privacy.compute_dp_sgd_privacy_statement(
      number_of_examples=n, batch_size=r, num_epochs=rounds * r / n, noise_multiplier=sigma,
      delta=delta, used_microbatching=False,
  )
  expected = float(re.search(r'assuming Poisson sampling \(\*\): +(\S+)', statement)[1])
  spec = spec_lib.PrivacySpec(n, r, rounds, sigma, 1.0, delta, num_slots=n)
  # It prints three decimals, and tries nearly the same orders.
  assert spec.epsilon(accountants.POISSON_RDP) == pytest.approx(expected, abs=1e-3)
  if sigma == 1.4:
    assert expected == 0.744


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
