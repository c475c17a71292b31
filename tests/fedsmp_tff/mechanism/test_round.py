"""Tests of a round: the private sum against a NumPy reading of the paper, and choices."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import randomness
from fedsmp_tff import released as released_lib
from fedsmp_tff import runtime
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import adaptive_clipping
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import noise_shares
from fedsmp_tff.mechanism import round as round_lib
from tests.support import distributions
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

  @pytest.mark.parametrize('kept, clip', [
      (7, 0.3), (1, 1.5), (7, None), (None, 1e6), (None, None),
      (None, 6.3),  # Some norms are above it, and none of the values.
  ])
  def test_mean_without_noise_equals_numpy(self, kept, clip):
    updates = one_round.updates(6)
    sparsifier = sparsifiers.RandK(num=kept) if kept else sparsifiers.Dense()
    factory = processes.factory(sparsifier, 6, clipping_norm=clip)
    # Without clipping, rand-k's default bound is 16 d/k: far above these values.
    state, output = one_round.run(factory, updates)
    assert len(set(state.coordinates)) == (kept or 0)
    coordinates = state.coordinates if kept else np.arange(one_round.DIM)
    expected = numpy_reference.mean_without_noise(
        updates, coordinates, one_round.DIM / len(coordinates), clip
    )
    step = factory.round([(one_round.DIM,)]).channel.step * (clip or 1.0)
    # Half a step, and float32's own rounding of the result.
    tolerance = step / 2 + 1e-6 * np.max(np.abs(expected))
    np.testing.assert_allclose(output.result, expected, atol=tolerance, rtol=0)
    off = np.setdiff1d(np.arange(one_round.DIM), coordinates)
    assert not np.any(output.result[off])

  @pytest.mark.parametrize('noise, clip', [
      ('gaussian', 0.5), ('discrete_gaussian', 0.5), ('gaussian', 0.0),  # A schedule reaches zero.
  ])
  def test_every_value_sent_carries_a_noise_share(self, noise, clip):
    # One client of nine: what it sends alone. Noise on some values, or a choice among
    # noisy ones, would show here and not in a sum.
    dim, num_slots, sigma = 4000, 9, 1.4
    factory = processes.factory(
        sparsifiers.Dense(), num_slots, clipping_norm=0.5, noise_multiplier=sigma, noise=noise
    )
    mechanism = factory.round([(dim,)])
    state = mechanism.initial_state(seed=2)
    state = state._replace(clipping_norm=tf.constant(clip, tf.float64))
    seed = tf.constant([3, 4], tf.int64)
    sent = mechanism.report(tf.zeros([dim]), state, seed)['values']
    alone = mechanism.channel.decode_sum(
        sent, tf.constant(1), tf.constant([0, 0], tf.int64)
    ).numpy()
    # In units of C; integers are some hundreds a share.
    distributions.assert_normal(alone, sigma / 3, least=1e-3)
    assert np.mean(alone == 0) < 0.01
    # A share has its fourth moment too: nothing is cut off or left out.
    assert stats.kurtosis(alone) == pytest.approx(0, abs=0.35)
    # Exactly the draws, whose distribution test_noise_shares has: a scale 1 % off shows here alone.
    channel = mechanism.channel
    if noise == 'gaussian':
      share = noise_shares.gaussian_share(dim, sigma / 3, seed)
      np.testing.assert_allclose(alone, share, rtol=0, atol=0.501 * channel.step)
    else:
      assert channel.share_variance * channel.step**2 >= sigma**2 / 9
      seed = randomness.derive(seed, randomness.Stream.INTEGER_NOISE)
      share = noise_shares.integer_share(channel.num_integers, channel.share_variance, seed)
      np.testing.assert_array_equal(sent, share % channel.modulus)

  @pytest.mark.parametrize('clip', [1.0, None])
  def test_a_broken_client_is_bounded_or_counts_as_zero(self, clip):
    process = processes.factory(sparsifiers.Dense(), 3, clipping_norm=clip, seed=3).create(
        one_round.VECTOR
    )
    *updates, broken = one_round.updates(3, scale=0.01)
    honest = process.next(process.initialize(), [*updates, np.zeros_like(broken)]).result
    for bad in (np.nan, np.inf, -np.inf, 3e38):
      broken[11] = bad
      result = process.next(process.initialize(), [*updates, broken]).result
      moved = 3 * np.linalg.norm(result - honest)
      if np.isfinite(bad):
        assert moved == pytest.approx(clip or 16.0, rel=0.01)
      else:
        assert moved == 0

  def test_a_broken_client_still_adds_noise(self):
    dim = 4000
    factory = processes.factory(sparsifiers.Dense(), 1, clipping_norm=1.0, noise_multiplier=1.0)
    _, output = one_round.run(
        factory, [np.full(dim, np.nan, np.float32)], tff.TensorType(np.float32, [dim])
    )
    # The standard deviation of 4000 values is within 4.5 % with probability
    # 1 - 5e-5 (four standard errors of 1/sqrt(8000)); not seeded.
    assert np.std(output.result) == pytest.approx(1.0, rel=0.06)

  @pytest.mark.parametrize('noise', ['gaussian', 'discrete_gaussian'])
  def test_fewer_than_min_reports_change_nothing(self, noise):
    clip, sigma, dim = 0.5, 1.4, 9000
    factory = processes.factory(
        sparsifiers.Dense(), 4, clipping_norm=clip, noise_multiplier=sigma, num_slots=6,
        min_reports=5, noise=noise,
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
      # Shares are sized for five: with six there is more noise, never less than sigma. All
      # updates are equal, so shares from one seed would not add up to the scale.
      stddev = clip * sigma * np.sqrt(num / 5) / 4
      mean = num * clip / np.sqrt(dim) / 4
      distributions.assert_normal(output.result - mean, stddev)
    with pytest.raises(Exception, match='at most 6 participants, one for each of `num_slots`'):
      process.next(state, ones * 7)

  def test_mean_with_integers_equals_numpy(self):
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

  # The vote on C raises the noise of the values, here by sqrt(1 - 0.25^2).
  @pytest.mark.parametrize('adaptive, weight', [
      (None, 1.0), (adaptive_clipping.AdaptiveClipping(), 0.9375**0.5),
  ])
  def test_signal_to_noise_is_estimated_from_the_release(self, adaptive, weight):
    dim, clients, sigma = 16_000, 10, 0.25
    factory = processes.factory(
        sparsifiers.Dense(), clients, clipping_norm=2.0, noise_multiplier=sigma,
        adaptive_clipping=adaptive, num_slots=12, min_reports=clients,
    )
    process = factory.create(tff.TensorType(np.float32, [dim]))
    update = np.full(dim, 1.0, np.float32)
    output = process.next(process.initialize(), [update] * clients)
    # The sum is r C long, its noise sqrt(d) sigma C: energies 100 to 1,000. The estimate's
    # standard deviation is sqrt(2 + 4 * 0.1) / sqrt(d) = 0.012: 6.5 of them are 0.08.
    signal_to_noise = output.measurements['signal_to_noise']
    assert signal_to_noise == pytest.approx(0.1 * weight**2, abs=0.08)
    # The noise in the mean has a standard deviation of C sigma / weight / r.
    energy = np.mean((np.float64(output.result) * weight * clients / (2 * sigma)) ** 2)
    assert signal_to_noise == pytest.approx(energy - 1, abs=1e-5)


class TestExtrapolation:

  @staticmethod
  def _rounds(sparsifier, updates, clip=None, **options):
    """One round without and with the step, from equal seeds; returns updates and measurements."""
    mechanism, outputs = mechanism_lib.Mechanism(clipping_norm=0.5, **options), []
    for extrapolate in (False, True):
      steps = round_lib.FedSmpRound(
          sparsifier, mechanism, [(one_round.DIM,)], extrapolate=extrapolate
      )
      state = steps.choose(steps.initial_state(1))
      if clip is not None:  # As after rounds of an adaptive C, or of a schedule.
        state = state._replace(clipping_norm=tf.constant(clip, tf.float64))
      update, _, measured = _one_round(steps, state, updates)
      assert list(measured) == steps.measurements
      outputs.append((update.numpy(), measured))
    (plain, _), (update, measured) = outputs
    return plain, update, float(measured['server_step'])

  @pytest.mark.parametrize('sparsifier', [sparsifiers.Dense(), sparsifiers.RandK(num=9)])
  @pytest.mark.parametrize('sigma, clip, options', [
      (0.0, 0.5, {}), (0.2, 0.5, {}), (0.2, 0.3, {}), (0.2, 0.0, {}),
      (0.2, 0.3, dict(adaptive_clipping=adaptive_clipping.AdaptiveClipping())),
      (0.2, 0.5, dict(num_slots=9, min_reports=3)),
      (90.0, 0.5, {}),  # The noise hides the mean.
  ])
  def test_step_equals_numpy(self, sparsifier, sigma, clip, options):
    num = 6
    plain, update, step = self._rounds(
        sparsifier, one_round.updates(num), clip,
        clients_per_round=num, noise_multiplier=sigma, **options,
    )
    num_kept = np.count_nonzero(plain) if clip else 9
    # Six shares of noise, each for a sum of `min_reports` of them; a vote on C weighs 1/4 or less.
    weight = mechanism_lib.Mechanism(num, 0.5, sigma, **options).value_weight
    stddev = sigma * clip / weight / num * np.sqrt(num / options.get('min_reports', num))
    noise = num_kept * stddev**2
    energy = np.sum(plain**2)
    signal = max(energy - noise, noise * np.sqrt(2 / num_kept), clip**2 / num)
    # The distance of FedExP without noise, over the length of the release.
    distance = clip**2 / (2 * np.sqrt(signal)) if clip else 0.0
    expected = max(1.0, distance / max(np.sqrt(energy), np.sqrt(signal))) if clip else 1.0
    assert step == pytest.approx(expected, rel=1e-9) and 1 <= step <= num / 2
    np.testing.assert_allclose(update, step * plain, rtol=1e-9)

  def test_step_depends_on_the_release_alone(self):
    zero, one, other = np.eye(one_round.DIM, dtype=np.float32)[:3] * [[0], [1], [1]]
    steps = [
        self._rounds(
            sparsifiers.Dense(), updates + [zero] * 2, clients_per_round=8, noise_multiplier=0.0
        )[2]
        for updates in (
            [one / 2, other / 2] * 3, [7 * one, 3 * other] * 3, [(one + other) / 4] * 6
        )
    ]
    # The mean is 3/16 in both coordinates, C is 1/2. FedExP by the clients' own norms would have
    # 4/3, 155 and 2/3. Encoding rounds the values by less than 1e-6 of C.
    assert steps == pytest.approx([0.5**2 / (4 * (3 / 16) ** 2)] * 3, rel=1e-5)

  def test_extrapolation_needs_clipping(self):
    with pytest.raises(ValueError, match='`extrapolate`=True needs a `clipping_norm`'):
      round_lib.FedSmpRound(
          sparsifiers.Dense(), mechanism_lib.Mechanism(2), [(3,)], extrapolate=True
      )


class TestRounds:

  @pytest.mark.parametrize('noise, sparsifier', [
      ('gaussian', released_lib.ReleasedTopK(num=5)),
      ('discrete_gaussian', sparsifiers.RandK(num=5)),
  ])
  def test_round_steps_equal_the_aggregator(self, noise, sparsifier):
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


class TestMemory:

  def test_nothing_is_remembered_without_a_release(self):
    # Without votes, C would move by the quantile's distance from 1/2.
    mechanism = mechanism_lib.Mechanism(
        _CLIENTS, clipping_norm=100.0, noise_multiplier=0.0, min_reports=2,
        adaptive_clipping=adaptive_clipping.AdaptiveClipping(quantile=0.3),
    )
    steps = round_lib.FedSmpRound(
        released_lib.ReleasedTopK(num=4), mechanism, releases.SHAPES
    )
    updates = one_round.updates(_CLIENTS, dim=releases.DIM, seed=0)
    start = steps.choose(steps.initial_state(1))
    _, state, _ = _one_round(steps, start, updates)
    assert np.any(state.memory.total != start.memory.total)
    state = steps.choose(state)
    update, after, measurements = _one_round(steps, state, updates[1:2])
    assert measurements['released'] == 0 and not np.any(update)
    tf.nest.map_structure(np.testing.assert_array_equal, after.memory, state.memory)
    assert after.clipping_norm == state.clipping_norm != start.clipping_norm
    _, after, measurements = _one_round(steps, state, updates[1:])
    assert measurements['released'] == 1 and np.any(after.memory.total != state.memory.total)


class _GivenMask(sparsifiers.SizedSparsifier):
  """Chooses the coordinates that a test gives."""

  def choose(self, context):
    return tf.constant(self.given)


class TestCoordinates:

  @pytest.mark.parametrize('given, held', [
      ([0, 0, 0], 1), ([5, 2, 5], 2), ([1, 2, 6], 1), ([-1, 2, 3], 1),
  ])
  def test_an_invalid_mask_fails_before_clients_train(self, given, held):
    mask = _GivenMask(num=3, mask_rounds=held)
    object.__setattr__(mask, 'given', given)
    process = processes.factory(mask, 2).create(tff.TensorType(np.float32, [6]))
    with pytest.raises(
        runtime.CheckFailedError,
        match='^`_GivenMask.choose` returned a coordinate twice or one that is not from 0 to 5, so',
    ):
      process.initialize()

  def test_first_and_last_coordinates_in_any_order_are_valid(self):
    mask = _GivenMask(num=3)
    object.__setattr__(mask, 'given', [5, 2, 0])
    process = processes.factory(mask, 2).create(tff.TensorType(np.float32, [6]))
    output = process.next(process.initialize(), [np.ones(6, np.float32)] * 2)
    np.testing.assert_allclose(output.result, [1, 0, 1, 0, 0, 1], atol=1e-6)
