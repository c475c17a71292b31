"""Tests of losses on arrays against dp-accounting's own, one at a time."""

import math

from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld import privacy_loss_mechanism
import numpy as np
import pytest

from fedsmp_tff.privacy import gaussian_loss
from fedsmp_tff.privacy import pld

_STEP = 1e-3


@pytest.mark.parametrize('adjacency', list(gaussian_loss.Adjacency))
@pytest.mark.parametrize('sigma', [0.25, 1.0, 6.0])
@pytest.mark.parametrize('rate', [1e-4, 0.5, 0.999, 1.0])
def test_delta_at_each_point_of_the_grid(adjacency, sigma, rate):
  actual = gaussian_loss._GaussianLoss(sigma, rate, adjacency)
  expected = privacy_loss_mechanism.GaussianPrivacyLoss(
      sigma, sampling_prob=rate, adjacency_type=adjacency
  )
  bounds = expected.connect_dots_bounds()
  edges = [0.0]  # On either side of where the divergence has another formula.
  if rate < 1:
    edges += [sign * math.log1p(-rate) + side for sign in (-1, 1) for side in (-1e-9, 1e-9)]
  epsilons = np.concatenate(
      [np.linspace(bounds.epsilon_lower, bounds.epsilon_upper, 400), edges]
  )
  # Both round: a delta is a difference of numbers of at most 1 (or e^epsilon times less).
  np.testing.assert_allclose(
      actual.get_delta_for_epsilon(epsilons), expected.get_delta_for_epsilon(epsilons),
      rtol=1e-9, atol=1e-15,
  )


@pytest.mark.parametrize('population, clients, num_slots', [
    (1180, 10, 26), (1180, 10, 12), (1180, 10, 1180), (50, 50, 50), (200, 100, 110),
])
def test_a_round_with_slots(population, clients, num_slots):
  actual = pld.poisson(0.8, population, clients, num_slots, _STEP)
  expected = privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
      population, clients / population, num_slots, 0.8, value_discretization_interval=_STEP
  )
  for epsilon in (0.0, 0.1, 1.0, 5.0):
    assert actual.get_delta_for_epsilon(epsilon) == pytest.approx(
        expected.get_delta_for_epsilon(epsilon), rel=1e-9, abs=1e-15
    )
  assert pld.epsilon_of([(actual, 20)])(1e-5) == pytest.approx(
      expected.self_compose(20).get_epsilon_for_delta(1e-5), rel=1e-9
  )
