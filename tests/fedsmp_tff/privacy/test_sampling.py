"""Tests of who takes part in a round."""

import copy
import pickle

import numpy as np
import pytest
from scipy import stats

from fedsmp_tff.privacy import sampling


class TestComputation:

  @pytest.mark.parametrize('sampler, arguments, match', [
      (sampling.AllocationSampler, (7, 3, 8), 'clients per round, 3, to the number of clients, 7'),
      (sampling.FixedSampler, (7, 2, -1), '`seed` must not be negative. Found -1'),
      *((sampling.FixedSampler, (7, r), 'from 1 to the number of clients, 7') for r in (0, 8)),
      *(
          (sampling.PoissonSampler, (7, 3, slots), 'from the clients per round, 3, to the number of clients, 7')
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


def _block(sampler, number=0):
  per_block = sampler.rounds_per_block
  return [sampler.sample(number * per_block + t) for t in range(per_block)]


class TestAllocationSampler:

  @pytest.mark.parametrize('n, r, per_block', [
      (12, 4, 3), (10, 4, 3), (1137, 100, 11), (7, 7, 1), (7, 5, 1), (7, 1, 7)
  ])
  @pytest.mark.parametrize('seed', [None, 1])
  def test_each_client_takes_part_once_in_a_block(self, n, r, per_block, seed):
    sampler = sampling.AllocationSampler(n, r, n, seed)
    assert sampler.rounds_per_block == per_block
    for number in range(3):
      cohorts = _block(sampler, number)
      assert all(len(set(cohort)) == sampler.num_slots == n for cohort in cohorts)
      clients = np.concatenate(cohorts)
      assert sorted(clients[clients >= 0]) == [*range(n)]
      assert (clients[clients < 0] < -n).all()

  def test_rounds_of_clients_are_uniform_and_independent(self):
    # The pair of rounds of each of two clients has 9 equally likely values.
    sampler, blocks = sampling.AllocationSampler(6, 2, 6, seed=4), 4000
    rounds = np.zeros((blocks, 6), int)
    for number in range(blocks):
      for t, cohort in enumerate(_block(sampler, number)):
        rounds[number, cohort[cohort >= 0]] = t
    # Rounds of one client in two blocks, and of two clients in one block: chi-squared with 8
    # degrees of freedom exceeds 36 with a probability of 2e-5, in one of 21 pairs with 4e-4.
    pairs = [(rounds[:-1, 0], rounds[1:, 0])]
    pairs += [(rounds[:, a], rounds[:, b]) for a in range(6) for b in range(a)]
    for a, b in pairs:
      counts, expected = np.bincount(3 * a + b, minlength=9), len(a) / 9
      assert np.sum((counts - expected) ** 2) / expected < 36

  def test_a_seeded_draw_depends_on_seed_and_number_alone(self):
    def draws(order, seed=1):
      sampler = sampling.AllocationSampler(50, 10, seed=seed)
      found = {draw: tuple(sampler.sample(draw)) for draw in order}
      return [found[draw] for draw in sorted(found)]

    assert draws(range(12)) == draws([7, 3, 11, 0, 5, 1, 2, 4, 6, 8, 9, 10])
    assert draws(range(12)) != draws(range(12), seed=2)
    sampling.AllocationSampler(7, 2, seed=2**256).sample(0)  # A seed of any size.

  def test_without_a_seed_no_block_is_repeated(self):
    # Two blocks of 60 clients are equal with a probability of 3^-60.
    blocks = [
        tuple(map(tuple, _block(sampling.AllocationSampler(60, 20, 60), number)))
        for number in (0, 0, 1)
    ]
    assert len(set(blocks)) == 3

  @pytest.mark.parametrize('draws', [
      (0, 0), (0, 1, 1), (0, 1, 0), (0, 3, 2), (0, 3, 0), (1,), (0, 4), (0, 1, 2, 3, 1), (5,)
  ])
  def test_part_of_a_block_is_not_drawn_again(self, draws):
    sampler = sampling.AllocationSampler(12, 4)
    for draw in draws[:-1]:
      sampler.sample(draw)
    with pytest.raises(ValueError, match=f'Draw {draws[-1]} is in a block'):
      sampler.sample(draws[-1])

  def test_the_rest_of_a_block_may_be_left_out(self):
    sampler = sampling.AllocationSampler(12, 4)
    for draw in (0, 2, 6, 7, 8):
      sampler.sample(draw)

  @pytest.mark.parametrize('clone', [
      copy.copy, copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))
  ])
  def test_a_copy_does_not_know_the_block(self, clone):
    # Two samplers with one block would use each client twice in a block that counts once.
    sampler = sampling.AllocationSampler(60, 20, 60)
    sampler.sample(0)
    copied = clone(sampler)
    with pytest.raises(ValueError, match='Draw 1 is in a block'):
      copied.sample(1)
    assert tuple(copied.sample(3)) != tuple(sampler.sample(3))

  def test_an_overfull_round_keeps_clients_equally_likely(self):
    n, blocks = 10, 3000
    sampler = sampling.AllocationSampler(n, 5, 5, seed=3)
    counts = np.zeros(n)
    for number in range(blocks):
      for cohort in _block(sampler, number):
        assert len(set(cohort)) == 5
        counts[cohort[cohort >= 0]] += 1
    # A client is out if a fair coin of each of the others makes its round overfull and it is not
    # among the five: E max(0, X - 5) / 10 of both rounds, X binomial. 9 degrees of freedom.
    lost = 2 * np.maximum(np.arange(n + 1) - 5, 0) @ stats.binom.pmf(np.arange(n + 1), n, 0.5) / n
    expected = (1 - lost) * blocks
    assert np.sum((counts - expected) ** 2) / (expected * lost) < 34

  @pytest.mark.parametrize('n, r', [
      (6000, 100), (6000, 300), (1137, 100), (100, 1), (7, 5), (9, 9)
  ])
  def test_by_default_a_round_is_hardly_ever_overfull(self, n, r):
    sampler = sampling.AllocationSampler(n, r)
    assert stats.binom.sf(sampler.num_slots, n, 1 / sampler.rounds_per_block) <= 1e-13
    assert sampler.num_slots <= min(n, r + 9 * r**0.5 + 15)
