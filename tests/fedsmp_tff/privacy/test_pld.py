"""Tests of epsilon by privacy loss distributions against our own integration."""

import math

from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_mechanism
import numpy as np
import PLD_accounting
import pytest
from scipy import stats

from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import pld
from fedsmp_tff.privacy import round as round_lib
from tests.support import allocation_monte_carlo
from tests.support import gaussian_mechanism
from tests.support import sum_test

# The grid of losses: its width in all is far more than losses add up to here.
_STEP, _SIZE = 4e-5, 2**21


def _loss(x, sigma, q, means):
  """Log of P's density over Q's; each (1 - q) N(0) + q N(mean)."""

  def log_ratio(mean):  # To N(0).
    return np.logaddexp(
        math.log1p(-q) if q < 1 else -np.inf,
        math.log(q) + (2 * mean * x - mean**2) / (2 * sigma**2),
    )

  return log_ratio(means[0]) - log_ratio(means[1])


def _epsilon(sigma, q, rounds, delta, means, up):
  """Composed by FFT; `up` rounds each round's loss up, so that epsilon is no less."""
  x = np.linspace(-14 * sigma - 2, 14 * sigma + 2, 1_000_001)
  cdf = (1 - q) * stats.norm.cdf(x, 0, sigma) + q * stats.norm.cdf(x, means[0], sigma)
  mass = np.diff(cdf)
  loss = _loss(x, sigma, q, means)
  ends = np.stack([loss[:-1], loss[1:]])
  index = np.ceil(ends.max(axis=0) / _STEP) if up else np.floor(ends.min(axis=0) / _STEP)
  index = index.astype(np.int64)
  assert np.abs(index).max() < _SIZE // 2
  pmf = np.bincount(index % _SIZE, mass, _SIZE)
  composed = np.fft.irfft(np.fft.rfft(pmf) ** rounds, _SIZE)
  losses = _STEP * np.fft.fftshift(np.fft.fftfreq(_SIZE, 1 / _SIZE))
  composed = np.fft.fftshift(composed)

  def delta_of(epsilon):
    above = losses > epsilon
    return np.sum(composed[above] * -np.expm1(epsilon - losses[above]))

  low, high = 0.0, losses[-1]
  while high - low > 1e-6:
    middle = (low + high) / 2
    low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
  return high


# In units of C: the pair for a replaced client that the module's docstring names.
_PAIR = (2.0, -2.0)


class TestExecution:

  # Poisson sampling without truncation has the figures of test_independent_epsilon.
  @pytest.mark.parametrize('sigma, q, rounds, delta', [
      (1.4, 0.01667, 180, 6000**-1.1), (3.0, 0.2, 25, 1e-3),
  ])
  def test_fixed_size_epsilon_equals_integration(self, sigma, q, rounds, delta):
    low, high = (_epsilon(sigma, q, rounds, delta, _PAIR, up) for up in (False, True))
    # Rounding moves the sum of losses by at most a step a round, either way.
    assert 0 <= high - low <= 2.5 * rounds * _STEP
    n, step = 100_000, pld.grid_step([(sigma / 2, q, rounds)])
    got = pld.composed_epsilon_fn([(pld.fixed(sigma, n, round(q * n), step), rounds)])(delta)
    assert low <= got <= high + 2e-3

  def test_truncation_costs_the_mixture_of_pairs(self):
    # arXiv 2508.15089: while others overflow the slots, the client takes the place of
    # one of them, which moves the sum by 2 C; dp-accounting takes the pair of a replaced
    # client for it, which is no less. One round, by integration.
    sigma, n, r, num_slots, delta = 1.4, 200, 20, 24, 1e-3
    q = r / n
    overflow = stats.binom.sf(num_slots - 1, n - 1, q)
    sampled = stats.binom.sf(num_slots, n, q) * num_slots / n / overflow
    x = np.linspace(-14 * sigma - 2, 14 * sigma + 2, 400_001)
    normal = stats.norm(0, sigma).pdf

    def delta_of(epsilon, density, other):
      excess = density - math.exp(epsilon) * other
      return np.sum(np.maximum(excess, 0)) * (x[1] - x[0])

    def total(epsilon):
      added = max(
          delta_of(epsilon, (1 - q) * normal(x) + q * normal(x - 1), normal(x)),
          delta_of(epsilon, normal(x), (1 - q) * normal(x) + q * normal(x - 1)),
      )
      replaced = delta_of(
          epsilon,
          (1 - sampled) * normal(x) + sampled * normal(x - 2),
          (1 - sampled) * normal(x) + sampled * normal(x + 2),
      )
      return (1 - overflow) * added + overflow * replaced

    step = pld.grid_step([(sigma, q, 1)])
    one = pld.poisson(sigma, n, r, num_slots, step)
    epsilon = pld.composed_epsilon_fn([(one, 1)])(delta)
    untruncated = pld.composed_epsilon_fn([(pld.poisson(sigma, n, r, n, step), 1)])(delta)
    assert overflow > 0.1 and epsilon > 1.2 * untruncated
    assert total(epsilon) == pytest.approx(delta, rel=0.02)

  def test_rounding_is_charged_for_the_rounds_of_all_kinds(self):
    kinds = [(10.0, 0.01, 1000), (20.0, 0.02, 3000)]
    n, step = 100_000, pld.grid_step(kinds)
    epsilon_of = pld.composed_epsilon_fn(
        [(pld.poisson(sigma, n, round(rate * n), n, step), num) for sigma, rate, num in kinds]
    )
    charge = 4000 * 1.25 * np.finfo(float).eps
    # In addition dp-accounting charges 1e-15 for each kind's tails.
    assert epsilon_of(0.99 * charge) == math.inf > epsilon_of(1.01 * charge)

  def test_step_suits_many_small_and_few_large_rounds(self):
    both = [(10.0, 1e-4, 100_000), (1.0, 1e-2, 50)]
    n, delta = 1_000_000, 1e-6

    def epsilon(step):
      losses = [(pld.poisson(sigma, n, round(rate * n), n, step), num) for sigma, rate, num in both]
      return pld.composed_epsilon_fn(losses)(delta)

    step = pld.grid_step(both)
    assert epsilon(step) <= 1.005 * epsilon(step / 4)


class TestMemory:
  """Grids of legal arguments, before they are composed: a loss has 16 bytes in an FFT."""

  @pytest.mark.parametrize('sampling, n, r, num_slots, sigma, rounds', [
      ('poisson', 100, 100, 100, 1.4, 10**6),
      ('poisson', 100, 100, 100, 0.3, 10**5),
      ('poisson', 35, 18, 23, 0.05, 10**7),
      ('poisson', 11_466, 3615, 3637, 4.0, 10**7),
      ('poisson', 10**9, 10, 10**9, 0.01, 10**7),
      ('fixed_size', 6000, 100, 100, 1.4, 10**6),
      ('fixed_size', 50_593, 3141, 3141, 0.02, 10**6),
      ('fixed_size', 124_432, 96_817, 96_817, 6.0, 10**7),
  ])
  def test_the_composed_grid_is_bounded(self, sampling, n, r, num_slots, sigma, rounds):
    accountant, step = _step(round_lib.Round(sampling, n, r, num_slots, sigma), rounds)
    one = accountant.loss(round_lib.Round(sampling, n, r, num_slots, sigma), step)
    for pmf in [one._pmf_remove] + ([] if one._symmetric else [one._pmf_add]):
      probs = pmf.to_dense_pmf()._probs
      low, high = common.compute_self_convolve_bounds(probs, rounds, 1e-15)
      assert len(probs) < 10**6 and high - low < 4 * 10**6

  # The slots overflow so rarely that the loss of that case is no part of the variance.
  @pytest.mark.parametrize('n, r, num_slots', [(850_180_185, 2, 25), (10**9, 10, 45)])
  def test_a_rare_loss_is_on_the_grid(self, n, r, num_slots):
    _, step = _step(round_lib.Round('poisson', n, r, num_slots, 0.87), 1)
    full, rate = pld.truncation(n, r, num_slots)
    replaced = privacy_loss_mechanism.GaussianPrivacyLoss(
        0.87 / 2, sampling_prob=rate,
        adjacency_type=privacy_loss_mechanism.AdjacencyType.REPLACE,
    )
    assert 0 < full < 1e-10 and replaced.connect_dots_bounds().epsilon_upper / step < 300_000

  # Steps of a tenth of a round's standard deviation add a quarter of a percent to its variance.
  @pytest.mark.parametrize('mu, rounds', [(50.0, 10**6), (700.0, 10**6)])
  def test_a_bounded_grid_is_tight(self, mu, rounds):
    sigma = math.sqrt(rounds) / mu
    step = pld.grid_step([(sigma, 1.0, rounds)])
    epsilon = pld.composed_epsilon_fn([(pld.poisson(sigma, 9, 9, 9, step), rounds)])(1e-5)
    exact = gaussian_mechanism.epsilon(mu, 1e-5)
    assert exact <= epsilon <= 1.0025 * exact


def _step(round_params, rounds):
  """The accountant of the sampling, and the step that it takes."""
  accountant = accountants.tightest_sound_accountant([(round_params, rounds)])
  described = [(s, rate, prob * rounds) for s, rate, prob in accountant.components(round_params)]
  return accountant, pld.grid_step(described)


class TestTinyRates:

  def test_more_mass_than_a_float_can_hold_is_infinite(self):
    # Rounding of deltas, over so small a step, adds mass to every round.
    one = pld.poisson(5130.0, 10**8, 1, 10**8, 2e-13)
    assert pld.composed_epsilon_fn([(one, 56_236)])(1.3e-10) == math.inf

  @pytest.mark.parametrize('sigma, n, rounds, delta', [
      (5130.0, 10**8, 56_236, 1.3e-10), (9540.0, 33_333_333, 69_269, 7.2e-11)
  ])
  def test_steps_are_larger_than_rounding(self, sigma, n, rounds, delta):
    step = pld.grid_step([(sigma, 1 / n, rounds)])
    epsilon = pld.composed_epsilon_fn([(pld.poisson(sigma, n, 1, n, step), rounds)])(delta)
    assert sum_test.epsilon(sigma, 1 / n, rounds, delta) <= epsilon < 1e-6


# sigma, B, blocks, delta. The slow ones have the settings of the tasks.
_ALLOCATIONS = [
    (1.0, 2, 1, 1e-3), (2.0, 3, 4, 1e-3), (0.5, 8, 1, 1e-2), (5.0, 4, 8, 1e-2),
    *(pytest.param(*numbers, marks=pytest.mark.slow) for numbers in (
        (1.4, 60, 3, 6000**-1.1), (1.42, 20, 2, 6000**-1.1), (0.627, 11, 4, 1137**-1.1),
        (0.8, 16, 2, 1e-3), (3.0, 10, 5, 1e-3), (1.0, 100, 1, 1e-4), (0.6, 30, 1, 1e-4),
        (1.0, 5, 1, 1e-2),
    )),
]


class TestAllocation:

  @pytest.mark.parametrize('sigma, per_block, blocks, delta', _ALLOCATIONS)
  def test_epsilon_is_between_monte_carlo_and_the_lower_bound(
      self, sigma, per_block, blocks, delta
  ):
    block = round_lib.Round('allocation', per_block, 1, per_block, sigma)
    assert block.rounds_per_block == per_block
    upper = accountants.ALLOCATION_PLD.epsilon([(block, blocks * per_block)], delta)
    lower = PLD_accounting.gaussian_allocation_epsilon_configurable(
        params=PLD_accounting.PrivacyParams(
            sigma=sigma, num_steps=per_block, num_epochs=blocks, delta=delta
        ),
        config=PLD_accounting.AllocationSchemeConfig(loss_discretization=0.1),
        bound_type=PLD_accounting.BoundType.IS_DOMINATED,
    )
    # In 12 settings with 3 comparisons, chance exceeds 5 standard errors with probability 1e-5.
    removed, added = allocation_monte_carlo.deltas(upper, sigma, per_block, blocks)
    assert max(removed.delta - 5 * removed.error, added.delta - 5 * added.error) <= delta
    least = allocation_monte_carlo.deltas(lower, sigma, per_block, blocks)
    assert max(estimate.delta + 5 * estimate.error for estimate in least) >= delta
    assert lower <= upper <= 1.05 * lower + 0.07  # Half of the gap is the coarse lower bound's.
    # A bound that errs by a tenth is found.
    short = allocation_monte_carlo.deltas(0.9 * lower, sigma, per_block, blocks)
    if delta >= 1e-3:
      assert max(estimate.delta - 5 * estimate.error for estimate in short) > delta

  def test_a_block_that_is_too_long_to_compute_has_no_proof(self):
    block = round_lib.Round('allocation', 10**14, 1, 10**14, 100.0)
    assert accountants.ALLOCATION_PLD.epsilon([(block, 10)], 1e-15) == math.inf

  def test_one_round_in_a_block_is_a_gaussian(self):
    block = round_lib.Round('allocation', 9, 9, 9, 2.0)
    assert accountants.ALLOCATION_PLD.epsilon([(block, 4)], 1e-5) == pytest.approx(
        gaussian_mechanism.epsilon(1.0, 1e-5), rel=1e-3
    )

  @pytest.mark.parametrize('sigma', [0.01, 0.059, 0.061])
  def test_with_little_noise_a_block_counts_as_one_round(self, sigma):
    block = round_lib.Round('allocation', 20, 10, 20, sigma)
    epsilon = accountants.ALLOCATION_PLD.epsilon([(block, 4)], 1e-5)
    most = pld.unsampled([(sigma, 2)])(1e-5)
    # One of two rounds: at least the loss of one Gaussian a block, less log 2 each.
    assert most - 2 * math.log(2) - 1 <= epsilon <= most
