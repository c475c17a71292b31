"""Tests of who takes part in a round."""

import copy

import numpy as np
import pytest
from scipy import stats

from fedsmp_tff.privacy import sampling


class TestComputation:

  @pytest.mark.parametrize('sampler, arguments, match', [
      (sampling.FixedSampler, (7, 2, -1), '`seed` must not be negative. Found -1'),
      *((sampling.FixedSampler, (7, r), 'from 1 to `population`=7') for r in (0, 8)),
      *(
          (sampling.PoissonSampler, (7, 3, slots), 'from `clients_per_round`=3 to `population`=7')
          for slots in (2, 8)
      ),
  ])
  def test_sizes_and_seeds_out_of_range_are_refused(self, sampler, arguments, match):
    with pytest.raises(ValueError, match=match):
      sampler(*arguments)


class TestFixedSampler:

  def test_without_a_seed_no_draw_is_repeated(self):
    sampler = sampling.FixedSampler(50, 10)
    copied = copy.deepcopy(sampler)
    # Two draws are equal with a probability of 3e-17.
    draws = [tuple(s.sample(draw)) for s in (sampler, copied) for draw in (0, 0, 1)]
    assert len(set(draws)) == 6

  def test_clients_are_distinct_and_follow_seed_and_round(self):
    sampling.FixedSampler(7, 2, 2**256).sample(0)  # A seed of any size.

    def rounds(seed):
      sampler = sampling.FixedSampler(50, 10, seed)
      return [tuple(sampler.sample(t)) for t in range(5)]

    for cohort in rounds(0):
      assert len(set(cohort)) == 10 and 0 <= min(cohort) and max(cohort) < 50
    assert len(set(rounds(0))) == 5
    assert rounds(0) == rounds(0)
    assert rounds(0) != rounds(2)
    assert rounds(None) != rounds(None)

  def test_every_pair_is_equally_likely(self):
    sampler = sampling.FixedSampler(6, 2, seed=0)
    num_rounds, num_pairs = 6000, 15
    pairs = [tuple(sorted(sampler.sample(t))) for t in range(num_rounds)]
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    expected = num_rounds / num_pairs
    # Chi-squared with 14 degrees of freedom exceeds 42.6 with probability 1e-4.
    assert len(counts) == num_pairs
    assert np.sum((counts - expected) ** 2) / expected < 42.6


class TestPoissonSampler:

  def test_every_slot_has_a_client_or_a_dummy(self):
    sampler = sampling.PoissonSampler(50, 10, 20, seed=1)
    nums = set()
    for t in range(200):
      cohort = sampler.sample(t)
      assert len(set(cohort)) == sampler.num_slots == 20
      clients, rest = cohort[cohort >= 0], cohort[cohort < 0]
      assert len(clients) + len(rest) == 20 and (clients < 50).all()
      nums.add(len(clients))
    # How many were sampled varies, how many take part does not.
    assert len(nums) > 5
    np.testing.assert_array_equal(sampler.sample(3), sampler.sample(3))

  def test_a_dummy_is_no_index_of_a_client_list(self):
    # At -1 a list has its last client, who would take part in nearly every round.
    clients = [*range(50)]
    cohort = sampling.PoissonSampler(50, 10, 20, seed=1).sample(0)
    assert (cohort < 0).any()
    for dummy in cohort[cohort < 0]:
      with pytest.raises(IndexError):
        clients[dummy]

  def test_clients_are_sampled_independently_at_their_rate(self):
    n, r, draws = 12, 3, 8000
    sampler = sampling.PoissonSampler(n, r, n, seed=2)
    taken = np.zeros((draws, n), bool)
    for t in range(draws):
      cohort = sampler.sample(t)
      taken[t, cohort[cohort >= 0]] = True
    # Chi-squared of the numbers sampled against the binomial distribution, whose
    # classes above 8 have under one draw; 8 degrees of freedom exceed 31.8 with
    # probability 1e-4. A fixed number would give thousands.
    counts = np.bincount(np.minimum(taken.sum(axis=1), 8), minlength=9)
    expected = stats.binom.pmf(np.arange(9), n, r / n)
    expected[8] += stats.binom.sf(8, n, r / n)
    expected *= draws
    assert np.sum((counts - expected) ** 2 / expected) < 31.8
    # Each client's rate, and pairs': within 4.5 standard errors of q and q^2 for 78
    # figures, which fails by chance with probability 6e-4.
    both = taken.T.astype(float) @ taken / draws
    q = r / n
    bound = np.where(np.eye(n), np.sqrt(q * (1 - q) / draws), np.sqrt(q**2 * (1 - q**2) / draws))
    assert np.all(np.abs(both - np.where(np.eye(n), q, q**2)) < 4.5 * bound)

  def test_truncation_keeps_clients_equally_likely(self):
    n, draws = 10, 6000
    sampler = sampling.PoissonSampler(n, 6, 6, seed=3)
    counts = np.zeros(n)
    for t in range(draws):
      cohort = sampler.sample(t)
      counts[cohort[cohort >= 0]] += 1
    # E min(Binomial(10, 0.6), 6) / 10 a client; 9 degrees of freedom.
    rate = np.minimum(np.arange(n + 1), 6) @ stats.binom.pmf(np.arange(n + 1), n, 0.6) / n
    expected = rate * draws
    assert np.sum((counts - expected) ** 2) / (expected * (1 - rate)) < 34
