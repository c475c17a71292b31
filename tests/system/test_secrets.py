"""Tests that no two draws of a process share their randomness: rounds, clients, coins."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import randomness
from fedsmp_tff.mechanism import noise_shares
from fedsmp_tff.privacy import discrete_gaussian
from tests.support import linear_runs
from tests.support import processes
from tests.support import tiny_models

_DIM = 128


def _releases(rounds, client_id=None, **options):
  """Returns the first state, and the releases of a client without data: float32[rounds, 128]."""
  process = processes.fed_smp(
      tiny_models.linear_regression(features=63),  # 128 = 63 * 2 + 2 weights.
      fedsmp_tff.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), 4, epochs=1),
      fedsmp_tff.Dense(), clients_per_round=1, clipping_norm=1.0, noise_multiplier=1.0, **options,
  )
  data = tf.data.Dataset.from_tensor_slices(tiny_models.regression_examples(0, features=63))
  if client_id is not None:
    data = fedsmp_tff.tag_client(client_id, data)
  states = [process.initialize()]
  for _ in range(rounds):
    states.append(process.next(states[-1], [data]).state)
  weights = [linear_runs.flat(process.get_model_weights(state)) for state in states]
  return states[0], np.diff(weights, axis=0)


@pytest.fixture
def seeds_as_noise(monkeypatch):
  """Makes a Gaussian share of 128 values the bits of its seed, to read them from a release."""
  def share(num_values, stddev, seed):
    del stddev
    assert num_values == _DIM
    bits = tf.bitwise.right_shift(seed[:, tf.newaxis], tf.range(64, dtype=tf.int64))
    return tf.cast(tf.reshape(tf.bitwise.bitwise_and(bits, 1), [-1]), tf.float64)

  monkeypatch.setattr(noise_shares, 'gaussian_share', share)


def _seed_of(values):
  bits = np.round(np.abs(values)).astype(np.uint8)
  return np.packbits(bits, bitorder='little').view(np.int64)


class TestUnseeded:

  @pytest.fixture
  def fresh(self, monkeypatch):
    """Replaces `fresh_seed` with distinct constants; returns the list of seeds drawn."""
    drawn = []

    def fresh_seed():
      drawn.append((0x0123456789ABCDEF + len(drawn), 0x7EDCBA9876543210 - len(drawn)))
      return tf.constant(drawn[-1], tf.int64)

    monkeypatch.setattr(randomness, 'fresh_seed', fresh_seed)
    return drawn

  def test_aggregator_noise_uses_a_whole_fresh_seed(self, seeds_as_noise, fresh):
    factory = processes.factory(
        fedsmp_tff.Dense(), 1, clipping_norm=1.0, noise_multiplier=1.0
    )
    process = factory.create(tff.TensorType(np.float32, [_DIM]))
    state = process.initialize()
    output = process.next(state, [np.zeros(_DIM, np.float32)])
    seed = tuple(_seed_of(output.result))
    assert seed in fresh
    # The server's seed is public, so noise derived from it could be removed.
    assert seed != tuple(state.seed)

  def test_process_noise_uses_a_whole_fresh_seed(self, seeds_as_noise, fresh):
    state, (noise,) = _releases(rounds=1)
    # The server's seed is public, so noise derived from it could be removed.
    secret = [seed for seed in fresh if seed != tuple(state.aggregator.seed)]
    noise_seeds = [
        tuple(randomness.derive(tf.constant(seed, tf.int64), randomness.Stream.NOISE).numpy())
        for seed in secret
    ]
    assert tuple(_seed_of(noise)) in noise_seeds

  def test_integer_noise_uses_a_whole_fresh_seed(self, monkeypatch):
    seeds = []

    def share(num_values, variance, seed):
      seeds.append(seed)
      return tf.zeros([num_values], tf.int64)

    monkeypatch.setattr(noise_shares, 'integer_share', share)
    factory = processes.factory(
        fedsmp_tff.Dense(), 1, clipping_norm=1.0, noise_multiplier=1.0,
        noise=fedsmp_tff.DiscreteGaussian(6),
    )
    round_ = factory.round([(6,)])
    state = round_.choose(round_.initial_state(seed=1))
    seed = randomness.fresh_seed()
    round_.report(tf.zeros([6]), state, seed)
    expected = randomness.derive(seed, randomness.Stream.INTEGER_NOISE)
    np.testing.assert_array_equal(seeds, [expected])


def test_noise_seed_depends_on_run_round_and_client(seeds_as_noise):
  for client_id in (0, 8):
    _, releases = _releases(rounds=2, client_id=client_id, seed=0)
    for round_num, values in enumerate(releases):
      client = randomness.client_seed(
          randomness.round_seed(randomness.run_seed(0), tf.constant(round_num)), tf.constant(client_id)
      )
      np.testing.assert_array_equal(
          _seed_of(values), randomness.derive(client, randomness.Stream.NOISE)
      )


def test_accountant_counts_the_vote_of_adaptive_clipping():
  spec = fedsmp_tff.PrivacySpec(
      100, 3, 2, 1.0, 1.0, 1e-3, num_slots=20, noise=fedsmp_tff.DiscreteGaussian(5)
  )
  plain = spec.mechanism()
  votes = dataclasses.replace(plain, adaptive_clipping=fedsmp_tff.AdaptiveClipping())
  for num, mechanism in ((5, plain), (4, votes)):
    factory = fedsmp_tff.FedSmpFactory(fedsmp_tff.RandK(num=num), mechanism)
    channel = factory.round([(12,)]).channel
    assert channel.num_values == 5 and channel.mechanism == mechanism
    assert discrete_gaussian.dominating_gaussian(mechanism) == (
        spec.round.noise_multiplier, spec.round.distance
    )
  for num, mechanism in ((4, plain), (6, plain), (5, votes)):
    factory = fedsmp_tff.FedSmpFactory(fedsmp_tff.RandK(num=num), mechanism)
    with pytest.raises(ValueError, match='`num_values`=5 must be the number of values that'):
      factory.create(tff.TensorType(np.float32, [12]))
