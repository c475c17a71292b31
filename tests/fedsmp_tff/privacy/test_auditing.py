"""Tests of lower bounds on epsilon: seldom too high, and near what is betrayed."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import optimize
from scipy import stats

from fedsmp_tff.privacy import auditing
from fedsmp_tff.privacy import spec as spec_lib
from tests.support import gaussian_mechanism

_DELTA = 1e-4


class TestOneRelease:

  def test_bound_is_below_and_near_the_true_epsilon(self):
    rng = np.random.default_rng(0)
    sigma, truth = 1.4, gaussian_mechanism.epsilon(1 / 1.4, _DELTA)
    absent = rng.normal(0, sigma, 150_000)
    audit = auditing.epsilon_of_one_release(1 + rng.normal(0, sigma, 150_000), absent, _DELTA)
    assert 0.7 * truth < audit.epsilon < truth
    # Noise at 2/3 of its scale betrays more than was claimed.
    audit = auditing.epsilon_of_one_release(
        1 + 2 / 3 * rng.normal(0, sigma, 150_000), 2 / 3 * absent, _DELTA
    )
    assert audit.epsilon > truth

  def test_bound_is_too_high_as_rarely_as_claimed(self):
    # Randomized response at epsilon = 1, which the threshold attack meets exactly: the
    # bound is too high in at most 5 % of trials; 15 of 100 would be 4.6 standard errors.
    rng = np.random.default_rng(1)
    rate = 1 / (1 + math.exp(-1))
    too_high = 0
    for _ in range(100):
      present, absent = rng.random(4000) < rate, rng.random(4000) > rate
      audit = auditing.epsilon_of_one_release(present.astype(float), absent.astype(float), 0.0)
      too_high += audit.epsilon > 1
      assert audit.epsilon > 0.7
    assert too_high < 15

  @pytest.mark.parametrize('delta, confidence, expected', [
      # 80 in 100 or more have probability 2.5 % at a rate of 0.7081573, and 30 in 200 or fewer at
      # 0.2071587, by binomial sums: log(0.7081573 / 0.2071587), and so on.
      (0.0, 0.95, 1.2291811), (0.1, 0.95, 1.0769484), (0.0, 0.9, 1.2953163),
  ])
  def test_bound_equals_two_sided_clopper_pearson(self, delta, confidence, expected):
    present = np.repeat([1.0, 1.0, 0.0], [25, 80, 20])  # A fifth chooses the threshold.
    absent = np.repeat([0.0, 1.0, 0.0], [50, 30, 170])
    audit = auditing.epsilon_of_one_release(present, absent, delta, confidence)
    assert audit.epsilon == pytest.approx(expected, abs=1e-7)

  def test_bound_is_near_zero_for_equal_distributions(self):
    scores = np.random.default_rng(2).normal(size=(2, 20_000))
    assert auditing.epsilon_of_one_release(*scores, _DELTA).epsilon < 0.1


# One round of all clients, with slots for all: epsilon has a closed form.
_SPEC = spec_lib.PrivacySpec(40, 40, 1, 1.4, 1.0, delta=1e-3)
_TRUTH = gaussian_mechanism.epsilon(1 / 1.4, 1e-3)


def _coins(rng, num=300, sigma=1.4):
  """Returns scores of a right run, and their coins."""
  coins = rng.random(num) < 0.5
  return coins + rng.normal(0, sigma, num), coins


def _cohorts(sampler, rounds):
  return np.stack([np.isin(np.arange(sampler.population), sampler.sample(t)) for t in range(rounds)])


class TestCoins:

  def test_bound_is_too_high_as_rarely_as_claimed(self):
    # At most 5 % of 400 trials in expectation, with a standard deviation of 4.4; four of them.
    rng, bounds = np.random.default_rng(3), []
    for _ in range(400):
      bounds.append(auditing.epsilon_of_coins(*_coins(rng), _SPEC, 0.95)[0])
    assert np.count_nonzero(np.array(bounds) > _TRUTH) <= 20 + 4 * 4.4
    # 64 % of guesses are right, give or take 2.8 %; the bound allows for 1.64 times that.
    assert 0.45 * _TRUTH < np.median(bounds) < 0.8 * _TRUTH

  def test_bound_is_the_clopper_pearson_one_of_the_noise(self):
    scores, coins = _coins(np.random.default_rng(4))
    bound, right = auditing.epsilon_of_coins(scores, coins, _SPEC, 0.9)
    rate = optimize.brentq(lambda p: stats.binom.sf(right - 1, len(coins), p) - 0.1, 0.4, 0.9)
    expected = gaussian_mechanism.epsilon(2 * stats.norm.ppf(rate), _SPEC.delta)
    assert right == sum((s > 0.5) == c for s, c in zip(scores, coins))
    assert bound == pytest.approx(expected, rel=1e-5)

  def test_sums_of_other_clients_only_lower_the_bound(self):
    scores, coins = _coins(np.random.default_rng(5), num=20_000)
    plain, _ = auditing.epsilon_of_coins(scores, coins, _SPEC, 0.95)
    disturbed, _ = auditing.epsilon_of_coins(scores + 2.0, coins, _SPEC, 0.95)
    assert 0 <= disturbed < 0.7 * plain and plain < _TRUTH

  def test_guesses_by_chance_prove_nothing(self):
    coins = np.array([True, False] * 50)
    assert auditing.epsilon_of_coins(np.zeros(100), coins, _SPEC, 0.95) == (0.0, 50)
    assert auditing.epsilon_of_coins(~coins * 1.0, coins, _SPEC, 0.95) == (0.0, 0)


class TestSharedNoise:

  def test_p_value_of_fresh_noise_is_seldom_small(self):
    # At most 10 % of 300 trials, with a standard deviation of 5.2, whatever clients add.
    rng = np.random.default_rng(6)
    values = rng.normal(0, 2, [300, 4, 30])
    values[:150, :, 0] += 3
    p_values = [auditing.shared_noise_p_value(v, 2.0) for v in values]
    assert np.count_nonzero(np.array(p_values) < 0.1) <= 30 + 4 * 5.2
    # Not by caution alone: of six pairs one is often near.
    assert np.count_nonzero(np.array(p_values[150:]) < 0.5) > 30

  @pytest.mark.parametrize('fault', ['all of it', 'a third of it', 'too little'])
  def test_noise_that_rounds_share_or_lack_is_found(self, fault):
    values = np.random.default_rng(7).normal(0, 2, [20, 500])
    if fault == 'all of it':
      values[5] = values[17]
      values[5, :100] += 2  # Clients.
    elif fault == 'a third of it':
      values[5] = math.sqrt(2 / 3) * values[5] + math.sqrt(1 / 3) * values[17]
    else:
      values *= 0.85
    # 500 degrees of freedom have a standard deviation of 6.3 % of their mean.
    assert auditing.shared_noise_p_value(values, 2.0) < 1e-4
    assert auditing.shared_noise_p_value(values[:1], 2.0) == 1.0


class TestSharedClients:

  @pytest.mark.parametrize('sampling', ['poisson', 'fixed_size', 'allocation'])
  def test_p_value_of_the_sampler_is_seldom_small(self, sampling):
    spec = spec_lib.PrivacySpec(60, 15, 8, 1.4, 1.0, delta=1e-3, sampling=sampling)
    p_values = np.array([
        auditing.shared_clients_p_value(_cohorts(spec.sampler(seed), 8), spec) for seed in range(200)
    ])
    assert np.count_nonzero(p_values < 0.1) <= 20 + 4 * 4.2
    assert np.count_nonzero(p_values < 0.9) > 10

  @pytest.mark.parametrize('sampling', ['poisson', 'fixed_size', 'allocation'])
  @pytest.mark.parametrize('fault', ['repeated', 'larger'])
  def test_cohorts_that_repeat_or_are_too_large_are_found(self, sampling, fault):
    spec = spec_lib.PrivacySpec(600, 60, 20, 1.4, 1.0, delta=1e-3, sampling=sampling)
    clients_per_round = 60 if fault == 'repeated' else 80
    sampled = dataclasses.replace(
        spec, clients_per_round=clients_per_round, num_slots=None, min_reports=None
    )
    cohorts = _cohorts(sampled.sampler(seed=1), spec.rounds)
    if fault == 'repeated':
      cohorts[11] = cohorts[3]
    assert auditing.shared_clients_p_value(cohorts, spec) < 1e-6


class TestRun:

  def test_a_right_run_is_refuted_as_rarely_as_claimed(self):
    # At most 20 % of 100 audits, with a standard deviation of 4.
    spec = dataclasses.replace(_SPEC, rounds=3, clients_per_round=20, num_slots=None)
    rng, refuted = np.random.default_rng(8), 0
    for seed in range(100):
      values, cohorts = rng.normal(0, 1.4, [3, 20]), _cohorts(spec.sampler(seed), 3)
      record = auditing.RunRecord(*_coins(rng), values, cohorts)
      refuted += bool(auditing.audit_run(record, spec, 1.4, confidence=0.8).refutations)
    assert refuted <= 20 + 4 * 4

  def test_each_fault_is_named(self):
    rng = np.random.default_rng(9)
    spec = dataclasses.replace(_SPEC, rounds=3)
    values, cohorts = rng.normal(0, 1.4, [3, 300]), np.ones([3, 40], bool)
    right = auditing.RunRecord(*_coins(rng, 2000), values, cohorts)
    audit = auditing.audit_run(right, spec, 1.4)
    assert not audit.refutations and 0 < audit.epsilon < spec.epsilon()
    # A twentieth of the error probability is left for each check.
    assert audit.epsilon == auditing.epsilon_of_coins(*right[:2], spec, 1 - 0.9 * (1 - 0.95))[0]
    halved = right._replace(scores=right.coins + (right.scores - right.coins) / 2)
    repeated = right._replace(values=values[[0, 1, 1]])
    less = dataclasses.replace(spec, clients_per_round=30)
    for record, reported, word in (
        (halved, spec, 'coins'), (repeated, spec, 'two releases'), (right, less, 'cohorts'),
    ):
      refutations = auditing.audit_run(record, reported, 1.4).refutations
      assert len(refutations) == 1 and word in refutations[0]
