"""Tests of a round: the private sum against a NumPy reading of the paper, and choices."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import released as released_lib
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import round as round_lib
from tests.support import numpy_reference
from tests.support import one_round
from tests.support import processes
from tests.support import releases

_CLIENTS = 3


def _one_round(steps, state, updates):
  message = state.message()
  reports = [
      steps.report(tf.constant(update), message, tf.constant([7, i], tf.int64))
      for i, update in enumerate(updates)
  ]
  return steps.finish(steps.sum(reports), state)


class TestPrivateSum:

  @pytest.mark.parametrize('clip', [0.3, 1.5, 1e6, None])
  @pytest.mark.parametrize('kept', [1, 7, None])
  def test_without_noise_equals_numpy_up_to_the_stated_rounding(self, kept, clip):
    updates = one_round.updates(6)
    sparsifier = sparsifiers.RandK(num=kept) if kept else sparsifiers.Dense()
    factory = processes.factory(
        sparsifier, 6, clipping_norm=clip, noise_multiplier=0.0 if clip else None
    )
    # Without clipping, rand-k's default bound is 16 d/k: far above these values.
    state, output = one_round.run(factory, updates)
    assert len(set(state.coordinates)) == (kept or 0)
    coordinates = state.coordinates if kept else np.arange(one_round.DIM)
    expected = numpy_reference.mean_without_noise(
        updates, coordinates, one_round.DIM / len(coordinates), clip
    )
    step = factory.round([(one_round.DIM,)]).channel.step * (clip or 1.0)
    # float32's own rounding of the result beside half a step.
    tolerance = step / 2 + 1e-6 * np.max(np.abs(expected))
    np.testing.assert_allclose(output.result, expected, atol=tolerance, rtol=0)
    off = np.setdiff1d(np.arange(one_round.DIM), coordinates)
    assert not np.any(output.result[off])

  @pytest.mark.parametrize('noise', ['gaussian', 'discrete_gaussian'])
  def test_every_value_that_leaves_a_client_carries_its_share(self, noise):
    # One client of nine: what it sends alone. Noise on some values, or a choice among
    # noisy ones, would show here and not in a sum.
    dim, num_slots, sigma = 4000, 9, 1.4
    factory = processes.factory(
        sparsifiers.Dense(), num_slots, clipping_norm=0.5, noise_multiplier=sigma, noise=noise
    )
    mechanism = factory.round([(dim,)])
    state = mechanism.initial_state(seed=2)
    sent = mechanism.report(tf.zeros([dim]), state, tf.constant([3, 4], tf.int64))['values']
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

  @pytest.mark.parametrize('sparsifier', [sparsifiers.RandK(num=7), sparsifiers.Dense()])
  def test_a_huge_client_moves_the_sum_by_at_most_c(self, sparsifier):
    clip, clients = 0.5, 5
    factory = processes.factory(
        sparsifier, clients, clipping_norm=clip, noise_multiplier=0.0, seed=3
    )
    honest = one_round.updates(clients, scale=0.01)
    direction = one_round.updates(1, seed=9)[0]
    huge = 1000 * clip * direction / np.linalg.norm(direction)
    _, without = one_round.run(factory, honest[:-1] + [np.zeros(one_round.DIM, np.float32)])
    _, with_huge = one_round.run(factory, honest[:-1] + [huge.astype(np.float32)])
    moved = clients * np.linalg.norm(with_huge.result - without.result)
    # float32 results, and half a step of rounding a value.
    assert moved == pytest.approx(clip, abs=1e-4)

  @pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf, 3e38])
  @pytest.mark.parametrize('clip', [1.0, None])
  def test_a_broken_client_is_bounded_or_counts_as_zero(self, bad, clip):
    factory = processes.factory(sparsifiers.Dense(), 3, clipping_norm=clip, seed=3)
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
    factory = processes.factory(sparsifiers.Dense(), 1, clipping_norm=1.0, noise_multiplier=1.0)
    _, output = one_round.run(
        factory, [np.full(dim, np.nan, np.float32)], tff.TensorType(np.float32, [dim])
    )
    # The standard deviation of 4000 values is within 4.5 % with probability
    # 1 - 5e-5 (four standard errors of 1/sqrt(8000)); not seeded.
    assert np.std(output.result) == pytest.approx(1.0, rel=0.06)

  def test_divides_by_r_and_refuses_another_number_of_clients(self):
    factory = processes.factory(sparsifiers.Dense(), 4, clipping_norm=1e6, noise_multiplier=0.0)
    process = factory.create(one_round.VECTOR)
    state = process.initialize()
    for num in (3, 5):
      with pytest.raises(Exception, match='clients_per_round'):
        process.next(state, one_round.updates(num))

  def test_with_min_reports_a_round_of_fewer_changes_nothing(self):
    clip, sigma, dim = 0.5, 1.4, 3000
    factory = processes.factory(
        sparsifiers.Dense(), 4, clipping_norm=clip, noise_multiplier=sigma, num_slots=6,
        min_reports=5,
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
    with pytest.raises(Exception, match='at most 6 clients, one for each of its slots'):
      process.next(state, ones * 7)

  @pytest.mark.parametrize('noise', ['gaussian', 'discrete_gaussian'])
  def test_empty_slots_make_the_noise_whole(self, noise):
    clip, sigma, dim = 0.5, 1.4, 4000
    factory = processes.factory(
        sparsifiers.Dense(), 2, clipping_norm=clip, noise_multiplier=sigma, num_slots=8, noise=noise
    )
    process = factory.create(tff.TensorType(np.float32, [dim]))
    updates = [np.full(dim, 1.0, np.float32)] + [np.zeros(dim, np.float32)] * 7
    output = process.next(process.initialize(), updates)
    released = output.result - clip / np.sqrt(dim) / 2
    # The clients' noise is fresh, not seeded: the threshold is crossed by chance with probability
    # 1e-6. At 2/3 and 3/2 of the scale 4000 values give p-values under 1e-25. Six of the eight
    # values are equal, so shares from one seed would not add up to the scale. Integers here are
    # some hundreds of steps wide.
    for scale, least, most in ((1, 1e-6, 1), (2 / 3, 0, 1e-20), (3 / 2, 0, 1e-20)):
      found = stats.kstest(released, 'norm', (0, scale * clip * sigma / 2)).pvalue
      assert least <= found <= most
    # The release is mostly noise, and says so.
    assert 0 <= output.measurements['signal_to_noise'] < 0.2

  def test_discrete_means_are_numpy_s_up_to_the_stated_rounding(self):
    updates = one_round.updates(6)
    factory = processes.factory(
        sparsifiers.RandK(num=7), 6, clipping_norm=1.5, noise='discrete_gaussian', bits=20
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


class TestRounds:

  @pytest.mark.parametrize('noise', ['gaussian', 'discrete_gaussian'])
  @pytest.mark.parametrize('sparsifier', [
      sparsifiers.RandK(num=5), released_lib.ReleasedTopK(num=5)
  ])
  def test_the_steps_make_the_aggregator_s_rounds(self, noise, sparsifier):
    options = dict(clipping_norm=1.0, noise=noise)
    updates = one_round.updates(_CLIENTS)
    steps = round_lib.FedSmpRound(
        sparsifier, mechanism_lib.Mechanism(_CLIENTS, **options), [(one_round.DIM,)]
    )
    process = processes.factory(sparsifier, _CLIENTS, seed=3, **options).create(one_round.VECTOR)
    state, process_state = steps.choose(steps.initial_state(seed=3)), process.initialize()
    # Integers are rounded at random, by less than a step each.
    atol = 1e-6 if noise == 'gaussian' else 2 * steps.channel.step * np.sqrt(6)
    for _ in range(2):
      np.testing.assert_array_equal(state.coordinates, process_state.coordinates)
      update, state, measurements = _one_round(steps, state, updates)
      state = steps.choose(state)
      output = process.next(process_state, updates)
      process_state = output.state
      np.testing.assert_allclose(update, output.result, atol=atol)
      assert list(measurements) == list(output.measurements) == steps.measurements
    assert int(state.round_num) == 2


class TestChoices:

  def _steps(self, sparsifier=sparsifiers.RandK(num=4), **options):  # noqa: B008
    mechanism = mechanism_lib.Mechanism(
        _CLIENTS, clipping_norm=100.0, noise_multiplier=0.0, min_reports=2, **options
    )
    return round_lib.FedSmpRound(sparsifier, mechanism, releases.SHAPES)

  def _updates(self, num=_CLIENTS, seed=0):
    return one_round.updates(num, dim=releases.DIM, seed=seed)

  def test_state_has_room_for_what_is_chosen_and_no_more(self):
    state = self._steps().initial_state(1)
    assert state.coordinates.shape == [4] and state.memory == ()
    state = self._steps(sparsifiers.Dense()).initial_state(1)
    assert state.coordinates.shape == [0] and state.memory == ()
    state = self._steps(released_lib.ReleasedTopK(num=4)).initial_state(1)
    assert [part.shape for part in state.memory] == [[releases.DIM], [releases.DIM], []]

  @pytest.mark.parametrize('held', [1, 3])
  def test_coordinates_are_kept_between_the_rounds_that_choose(self, held):
    steps = self._steps(sparsifiers.RandK(num=4, mask_rounds=held))
    state = steps.initial_state(1)
    masks = []
    for t in range(7):
      state = steps.choose(state._replace(round_num=tf.constant(t)))
      masks.append(tuple(state.coordinates.numpy()))
    # Of the 210 masks two in a row may be equal: not with this seed.
    assert [t for t in range(1, 7) if masks[t] != masks[t - 1]] == list(range(held, 7, held))
    fresh = self._steps()
    for t in range(0, 7, held):
      chosen = fresh.choose(fresh.initial_state(1)._replace(round_num=tf.constant(t)))
      assert masks[t] == tuple(chosen.coordinates.numpy())
      anew = steps.choose(state._replace(round_num=tf.constant(t + 1)), anew=True)
      assert tuple(anew.coordinates.numpy()) != masks[t]

  def test_no_public_update_is_made_while_a_mask_is_held(self):
    topk = sparsifiers.TopK(num=4, public_examples=(np.zeros((1, 2)), np.zeros(1)), mask_rounds=3)
    steps, made = self._steps(topk), []
    update = np.array([0, 5, 0, -6, 0, 0, 7, 0, 0, -8], np.float32)

    @tf.function
    def choose(round_num):
      state = steps.initial_state(1)._replace(round_num=round_num)

      def public_update(seed):
        del seed
        return tf.ensure_shape(
            tf.numpy_function(lambda t: made.append(t) or update, [round_num], tf.float32), [10]
        )

      return steps.choose(state, public_update).coordinates

    for t in range(5):
      expected = [1, 3, 6, 9] if t % 3 == 0 else [0] * 4  # `initial_state` has zeros.
      assert choose(tf.constant(t)).numpy().tolist() == expected
    assert made == [0, 3]

  def test_nothing_moves_and_nothing_is_remembered_without_a_release(self):
    steps = self._steps(released_lib.ReleasedTopK(num=4))
    start = steps.choose(steps.initial_state(1))
    _, state, _ = _one_round(steps, start, self._updates())
    # It would see a release: the first one changed all parts but the noise, of which there is none.
    assert np.any(state.memory.total != start.memory.total)
    assert np.any(state.memory.visits != start.memory.visits)
    assert state.message() == state._replace(memory=())  # Clients get all but the memory.
    state = steps.choose(state)
    update, after, measurements = _one_round(steps, state, self._updates(num=1, seed=1))
    assert measurements['released'] == 0 and not np.any(update)
    tf.nest.map_structure(np.testing.assert_array_equal, after.memory, state.memory)
    update, after, measurements = _one_round(steps, state, self._updates(num=2, seed=1))
    assert measurements['released'] == 1 and np.any(update)
    assert np.any(after.memory.total != state.memory.total)
