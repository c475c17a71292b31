"""Tests of the masked private sum against an independent NumPy reading of the paper."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import sparsifiers
from tests.support import numpy_reference
from tests.support import one_round
from tests.support import processes


class TestExecution:

  @pytest.mark.parametrize('clip', [0.3, 1.5, 1e6, None])
  @pytest.mark.parametrize('kept', [1, 7, one_round.DIM])
  def test_without_noise_equals_numpy_up_to_the_stated_rounding(self, kept, clip):
    updates = one_round.updates(6)
    sparsifier = sparsifiers.RandK(num=kept)
    factory = processes.factory(
        sparsifier, 6, clipping_norm=clip, noise_multiplier=0.0 if clip else None,
    )
    # Without clipping, rand-k's default bound is 16 d/k: far above these values.
    state, output = one_round.run(factory, updates)
    coordinates = state.coordinates
    assert len(set(coordinates)) == kept
    expected = numpy_reference.mean_without_noise(
        updates, coordinates, one_round.DIM / kept, clip
    )
    step = factory.round([(one_round.DIM,)]).channel.step * (clip or 1.0)
    # float32's own rounding of the result beside half a step.
    tolerance = step / 2 + 1e-6 * np.max(np.abs(expected))
    np.testing.assert_allclose(output.result, expected, atol=tolerance, rtol=0)
    off = np.setdiff1d(np.arange(one_round.DIM), coordinates)
    assert not np.any(output.result[off])

  def test_dense_equals_numpy(self):
    updates = one_round.updates(4)
    factory = processes.factory(
        sparsifiers.Dense(), 4, clipping_norm=1.0, noise_multiplier=0.0,
    )
    _, output = one_round.run(factory, updates)
    expected = numpy_reference.mean_without_noise(
        updates, np.arange(one_round.DIM), 1.0, 1.0
    )
    np.testing.assert_allclose(output.result, expected, atol=1e-6)

  def test_clip_comes_after_the_scale(self):
    # Each kept value is 1, d/k = 8, so the scaled norm is 8 sqrt(5) > C = 4.
    factory = processes.factory(
        sparsifiers.RandK(num=5), 1, clipping_norm=4.0, noise_multiplier=0.0
    )
    _, output = one_round.run(factory, [np.ones(one_round.DIM, np.float32)])
    assert np.linalg.norm(output.result) == pytest.approx(4.0, abs=1e-5)

  def test_noise_has_its_scale_on_the_kept_values_and_nowhere_else(self):
    dim, kept, clients, clip, sigma = 20_000, 4000, 8, 0.4, 1.4
    factory = processes.factory(
        sparsifiers.RandK(num=kept), clients,
        clipping_norm=clip, noise_multiplier=sigma,
    )
    state, output = one_round.run(
        factory, [np.zeros(dim, np.float32)] * clients,
        tff.TensorType(np.float32, [dim]),
    )
    released = output.result[state.coordinates]
    stddev = clip * sigma / clients

    def p_value(scale):
      return stats.kstest(released, 'norm', (0, scale * stddev)).pvalue

    # The clients' noise is fresh, not seeded: the threshold is crossed by chance
    # with probability 1e-6. At 2/3 and 3/2 of the scale 4000 values give p-values
    # under 1e-25 (see test_noise). The clients' values are equal here, so shares
    # from one seed would add up to sqrt(8) times the scale.
    assert p_value(1) > 1e-6
    assert p_value(2 / 3) < 1e-20
    assert p_value(3 / 2) < 1e-20
    assert np.count_nonzero(output.result) == np.count_nonzero(released)

  @pytest.mark.parametrize('noise', ['gaussian', 'discrete_gaussian'])
  def test_every_value_that_leaves_a_client_carries_its_share(self, noise):
    # One client of nine: what it sends alone. Noise on some values, or a choice among
    # noisy ones, would show here and not in a sum.
    dim, seats, sigma = 4000, 9, 1.4
    factory = processes.factory(
        sparsifiers.Dense(), seats, clipping_norm=0.5, noise_multiplier=sigma,
        noise=noise,
    )
    mechanism = factory.round([(dim,)])
    state = mechanism.initial_state(seed=2)
    sent = mechanism.report(
        tf.zeros([dim]), state, tf.constant([3, 4], tf.int64)
    )['values']
    alone = mechanism.channel.decode_sum(
        sent, tf.constant(1), tf.constant([0, 0], tf.int64)
    ).numpy()
    # In units of C; integers are some hundreds a share.
    stddev = sigma / 3
    assert stats.kstest(alone, 'norm', (0, stddev)).pvalue > 1e-3
    for scale in (2 / 3, 3 / 2):
      assert stats.kstest(alone, 'norm', (0, scale * stddev)).pvalue < 1e-20
    assert np.mean(alone == 0) < 0.01
    # A share has its fourth moment too: nothing is cut off or left out.
    assert stats.kurtosis(alone) == pytest.approx(0, abs=0.35)

  def test_two_rounds_and_two_runs_have_other_noise(self):
    factory = processes.factory(
        sparsifiers.Dense(), 2, clipping_norm=1.0, noise_multiplier=1.0, seed=1
    )
    process = factory.create(one_round.VECTOR)
    state = process.initialize()
    zeros = [np.zeros(one_round.DIM, np.float32)] * 2
    first = process.next(state, zeros)
    again = process.next(state, zeros)
    second = process.next(first.state, zeros)
    results = [first.result, again.result, second.result]
    for i, one in enumerate(results):
      for other in results[i + 1 :]:
        assert np.all(one != other)

  @pytest.mark.parametrize(
      'sparsifier', [sparsifiers.RandK(num=7), sparsifiers.Dense(), sparsifiers.Head(num=7)]
  )
  def test_a_huge_client_moves_the_sum_by_at_most_c(self, sparsifier):
    clip, clients = 0.5, 5
    factory = processes.factory(
        sparsifier, clients, clipping_norm=clip, noise_multiplier=0.0, seed=3,
    )
    honest = one_round.updates(clients, scale=0.01)
    direction = one_round.updates(1, seed=9)[0]
    huge = 1000 * clip * direction / np.linalg.norm(direction)
    _, without = one_round.run(factory, honest[:-1] + [np.zeros(one_round.DIM, np.float32)])
    _, with_huge = one_round.run(factory, honest[:-1] + [huge.astype(np.float32)])
    moved = clients * np.linalg.norm(with_huge.result - without.result)
    # float32 results, and half a step of rounding a value.
    assert moved == pytest.approx(clip, abs=1e-4)

  @pytest.mark.parametrize(
      'bad', [np.nan, np.inf, -np.inf, 3e38]
  )
  @pytest.mark.parametrize('clip', [1.0, None])
  def test_a_broken_client_is_bounded_or_counts_as_zero(self, bad, clip):
    factory = processes.factory(
        sparsifiers.Dense(), 3, clipping_norm=clip, seed=3
    )
    updates = one_round.updates(3, scale=0.01)
    broken = updates[2].copy()
    broken[11] = bad
    _, output = one_round.run(factory, updates[:2] + [broken])
    _, honest = one_round.run(factory, updates[:2] + [np.zeros(one_round.DIM, np.float32)])
    moved = 3 * np.linalg.norm(output.result - honest.result)
    if np.isfinite(bad):
      assert moved == pytest.approx(clip or 16.0, rel=0.01)
    else:
      assert moved == 0

  def test_a_broken_client_still_adds_its_noise(self):
    dim = 4000
    factory = processes.factory(
        sparsifiers.Dense(), 1, clipping_norm=1.0, noise_multiplier=1.0
    )
    _, output = one_round.run(
        factory, [np.full(dim, np.nan, np.float32)],
        tff.TensorType(np.float32, [dim]),
    )
    # The standard deviation of 4000 values is within 4.5 % with probability
    # 1 - 5e-5 (four standard errors of 1/sqrt(8000)); not seeded.
    assert np.std(output.result) == pytest.approx(1.0, rel=0.06)

  def test_divides_by_r_and_refuses_another_number_of_clients(self):
    factory = processes.factory(
        sparsifiers.Dense(), 4, clipping_norm=1e6, noise_multiplier=0.0
    )
    process = factory.create(one_round.VECTOR)
    state = process.initialize()
    for num in (3, 5):
      with pytest.raises(Exception, match='clients_per_round'):
        process.next(state, one_round.updates(num))

  def test_with_min_reporting_a_round_of_fewer_changes_nothing(self):
    clip, sigma, dim = 0.5, 1.4, 3000
    factory = processes.factory(
        sparsifiers.Dense(), 4, clipping_norm=clip, noise_multiplier=sigma,
        seats=6, min_reporting=5,
    )
    process = factory.create(tff.TensorType(np.float32, [dim]))
    state = process.initialize()
    ones = [np.full(dim, 1 / np.sqrt(dim), np.float32)]
    for num, released in ((4, 0), (5, 1), (6, 1)):
      output = process.next(state, ones * num)
      assert output.measurements['released'] == released
      assert output.measurements['participants'] == num
      assert output.state.round_num == 1
      if not released:
        assert not np.any(output.result)
        continue
      # Divided by r = 4, whoever reported; the clipped sum is num C / sqrt(d) each.
      # Shares are sized for five: with six there is more noise, never less than sigma.
      stddev = clip * sigma * np.sqrt(num / 5) / 4
      mean = num * clip / np.sqrt(dim) / 4
      noise = output.result - mean
      assert stats.kstest(noise, 'norm', (0, stddev)).pvalue > 1e-6
      assert stats.kstest(noise, 'norm', (0, 2 / 3 * stddev)).pvalue < 1e-20
      assert stats.kstest(noise, 'norm', (0, 3 / 2 * stddev)).pvalue < 1e-20
    with pytest.raises(Exception, match='at most 6 clients, one for each of its seats'):
      process.next(state, ones * 7)

  @pytest.mark.parametrize('noise', ['gaussian', 'discrete_gaussian'])
  def test_empty_seats_make_the_noise_whole(self, noise):
    clip, sigma, dim = 0.5, 1.4, 4000
    factory = processes.factory(
        sparsifiers.Dense(), 2, clipping_norm=clip, noise_multiplier=sigma, seats=8,
        noise=noise,
    )
    process = factory.create(tff.TensorType(np.float32, [dim]))
    updates = [np.full(dim, 1.0, np.float32)] + [np.zeros(dim, np.float32)] * 7
    output = process.next(process.initialize(), updates)
    released = output.result - clip / np.sqrt(dim) / 2
    # Fresh noise: see `test_noise_has_its_scale_...`. Integers here are some hundreds
    # of steps wide.
    for scale, least, most in ((1, 1e-6, 1), (2 / 3, 0, 1e-20), (3 / 2, 0, 1e-20)):
      found = stats.kstest(released, 'norm', (0, scale * clip * sigma / 2)).pvalue
      assert least <= found <= most
    # The release is mostly noise, and says so.
    assert 0 <= output.measurements['signal_to_noise'] < 0.2

  def test_discrete_means_are_numpy_s_up_to_the_stated_rounding(self):
    updates = one_round.updates(6)
    factory = processes.factory(
        sparsifiers.RandK(num=7), 6, clipping_norm=1.5, noise_multiplier=0.0,
        noise='discrete_gaussian', bits=20,
    )
    state, output = one_round.run(factory, updates)
    expected = numpy_reference.mean_without_noise(
        updates, state.coordinates, one_round.DIM / 7, 1.5
    )
    error = np.linalg.norm(output.result - expected)
    assert error <= 1.5 * factory.round([(one_round.DIM,)]).channel.step * np.sqrt(8)

  def test_signal_to_noise_is_estimated_from_the_release(self):
    dim, clients, sigma = 4000, 10, 0.5
    factory = processes.factory(
        sparsifiers.Dense(), clients, clipping_norm=2.0, noise_multiplier=sigma
    )
    process = factory.create(tff.TensorType(np.float32, [dim]))
    update = np.full(dim, 1.0, np.float32)
    output = process.next(process.initialize(), [update] * clients)
    # The sum is r C long, its noise sqrt(d) sigma C: energies 100 to 1,000. The noise's
    # varies by sqrt(2/d) = 2 % and it is crossed with the signal.
    assert output.measurements['signal_to_noise'] == pytest.approx(0.1, abs=0.12)

  def test_values_out_of_range_are_cut(self):
    factory = processes.factory(
        sparsifiers.Dense(), 2, value_bound=1.0
    )
    update = np.zeros(one_round.DIM, np.float32)
    update[:5] = [0.5, 1.0, 1.5, -3.0, 2.0]
    _, output = one_round.run(factory, [update, update])
    np.testing.assert_allclose(
        output.result[:5], [0.5, 1.0, 1.0, -1.0, 1.0], atol=1e-6
    )
