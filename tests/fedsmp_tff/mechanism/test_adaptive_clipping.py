"""Tests of adaptive clipping: it finds the quantile, and its votes are paid for."""

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import adaptive_clipping
from tests.support import distributions
from tests.support import numpy_reference
from tests.support import processes

_DIM, _CLIENTS = 30, 40
_VECTOR = tff.TensorType(np.float32, [_DIM])


def _factory(sigma=0.0, clip=1.0, num_slots=None, **options):
  return processes.factory(
      sparsifiers.Dense(), _CLIENTS, clipping_norm=clip, noise_multiplier=sigma,
      num_slots=num_slots, adaptive_clipping=adaptive_clipping.AdaptiveClipping(**options), seed=1,
  )


def _updates(norms):
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(len(norms), _DIM))
  vectors *= np.reshape(norms, [-1, 1]) / np.linalg.norm(vectors, axis=1, keepdims=True)
  return list(vectors.astype(np.float32))


class TestComputation:

  @pytest.mark.parametrize('options', [
      dict(quantile=0), dict(quantile=1), dict(quantile=math.nan), dict(learning_rate=0),
  ])
  def test_quantile_and_rate_out_of_range_are_refused(self, options):
    with pytest.raises(ValueError, match='must be in'):
      adaptive_clipping.AdaptiveClipping(**options)

  @pytest.mark.parametrize('sigma, r', [(1.4, 100), (1.4, 10), (0.3, 10), (0.0, 5)])
  def test_weights_of_values_and_vote_have_norm_one(self, sigma, r):
    adaptive = adaptive_clipping.AdaptiveClipping()
    value, vote = adaptive.value_weight(sigma, r), adaptive.vote_weight(sigma, r)
    assert value**2 + (vote / 2) ** 2 == pytest.approx(1)
    assert value > 0.96
    if vote < 0.5 and sigma:
      # Noise of r / 20 on the votes: Andrew et al. 2021; and their noise of the values.
      assert sigma / vote == pytest.approx(r / 20)
      assert sigma / value == pytest.approx((sigma**-2 - (2 * r / 20) ** -2) ** -0.5)


class TestExecution:

  @pytest.mark.parametrize('sigma', [0.0, 1.4])
  @pytest.mark.parametrize('norm, vote', [(9.0, -0.5), (0.5, 0.5)])
  def test_clip_bounds_values_and_vote_together(self, sigma, norm, vote):
    factory = _factory(sigma=sigma, num_slots=_CLIENTS + 20)  # Weights are of r, not of slots.
    steps = factory.round([(_DIM,)])
    update, seed = _updates([norm])[0], tf.constant([3, 4], tf.int64)
    state = steps.initial_state(seed=2)

    def sent(update):  # In units of C, noise included.
      values = steps.report(tf.constant(update), state, seed)['values']
      return steps.channel.decode_sum(values, tf.constant(1), seed).numpy()

    alone = sent(update) - sent(np.zeros_like(update))  # The noise is equal.
    adaptive = adaptive_clipping.AdaptiveClipping()
    value_weight = adaptive.value_weight(sigma, _CLIENTS)
    expected = value_weight * min(1, 1 / norm) * update
    steps_of_both = 2.01 * 0.5 * steps.channel.step
    np.testing.assert_allclose(alone[:-1], expected, rtol=0, atol=steps_of_both)
    assert alone[-1] == pytest.approx(
        vote * adaptive.vote_weight(sigma, _CLIENTS), abs=steps_of_both
    )
    assert np.linalg.norm(alone) <= 1 + steps_of_both * math.sqrt(_DIM + 1)

  def test_mean_equals_numpy(self):
    updates = _updates(np.linspace(0.1, 4.0, _CLIENTS))
    process = _factory(num_slots=_CLIENTS).create(_VECTOR)
    result = process.next(process.initialize(), updates).result
    expected = numpy_reference.mean_without_noise(updates, np.arange(_DIM), 1.0, 1.0)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)

  def test_clipping_norm_follows_the_quantile(self):
    quantile = 0.25
    process = _factory(quantile=quantile).create(_VECTOR)
    norms = np.linspace(0.1234, 4.0, _CLIENTS)
    updates = _updates(norms)
    state = process.initialize()
    before = state.clipping_norm
    for _ in range(40):
      output = process.next(state, updates)
      below = np.mean(norms <= state.clipping_norm)
      # Algorithm 1 of Andrew et al. 2021, without noise.
      assert output.state.clipping_norm == pytest.approx(
          state.clipping_norm * math.exp(-0.2 * (below - quantile)), rel=1e-5
      )
      assert output.measurements['clipping_norm'] == state.clipping_norm
      state = output.state
    assert before == 1.0
    assert state.clipping_norm == pytest.approx(np.quantile(norms, quantile), rel=0.1)

  def test_clients_who_send_zero_do_not_vote(self):
    # Noise-only participants, and clients whose update is not finite.
    process = _factory(num_slots=_CLIENTS + 20).create(_VECTOR)
    norms = [2.0] * 30 + [0.5] * 10
    rest = [np.zeros(_DIM, np.float32)] * 15 + [np.full(_DIM, np.nan, np.float32)] * 5
    output = process.next(process.initialize(), _updates(norms) + rest)
    assert output.state.clipping_norm == pytest.approx(math.exp(0.2 * 0.25), rel=1e-5)

  def test_votes_and_values_have_the_stated_noise(self):
    sigma, dim = 1.4, 6000
    factory = _factory(sigma=sigma)
    process = factory.create(tff.TensorType(np.float32, [dim]))
    zeros = [np.zeros(dim, np.float32)] * _CLIENTS
    state = process.initialize()
    output = process.next(state, zeros)
    adaptive = adaptive_clipping.AdaptiveClipping()
    multiplier = sigma / adaptive.value_weight(sigma, _CLIENTS)
    assert factory.mechanism.values_noise_multiplier == pytest.approx(multiplier)
    distributions.assert_normal(output.result, multiplier / _CLIENTS)
    factory, votes = _factory(sigma=sigma), []
    process = factory.create(_VECTOR)
    state, zeros = process.initialize(), [np.zeros(_DIM, np.float32)] * _CLIENTS
    for _ in range(140):
      moved = math.log(process.next(state, zeros).state.clipping_norm)
      votes.append(0.5 - 0.5 - moved / 0.2)
    stddev = sigma / adaptive.vote_weight(sigma, _CLIENTS) / _CLIENTS
    # 140 values: the standard deviation is within 35 % but for 1 in 100 million.
    assert np.std(votes) == pytest.approx(stddev, rel=0.35)


class TestSchedule:

  @pytest.mark.parametrize('sigma', [0.0, 1.5])
  def test_clip_and_noise_follow_it(self, sigma):
    factory = processes.factory(
        sparsifiers.Dense(), 4, clipping_norm=2.0, noise_multiplier=sigma, seed=1,
        clipping_schedule=lambda round_num: 0.5 ** tf.cast(round_num, tf.float32),
    )
    process = factory.create(tff.TensorType(np.float32, [4000]))
    state = process.initialize()
    clients = [np.full(4000, 0.0 if sigma else 1e6, np.float32)]
    clients += [np.zeros(4000, np.float32)] * 3
    for norm in (2.0, 1.0, 0.5):
      assert state.clipping_norm == norm
      output = process.next(state, clients)
      assert output.measurements['clipping_norm'] == norm
      if sigma:
        # 4000 values' standard deviation is known to 1.1 %, five of which are 6 %.
        assert np.std(output.result) == pytest.approx(norm * sigma / 4, rel=0.06)
      else:
        assert 4 * np.linalg.norm(output.result) == pytest.approx(norm, abs=1e-4)
      state = output.state
