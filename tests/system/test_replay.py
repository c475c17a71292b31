"""Replay: with the same randomness, one client more or another moves a release by C, or 2 C.

Neighbouring cohorts through the real mechanism with equal seeds (arXiv 2602.17454): what
differs between two releases is the client in question, so the released vectors are as far
apart as the mechanism's sensitivity lets them be, whatever the client sends.
"""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import randomness
from fedsmp_tff import state as state_lib
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import round as round_lib
from tests.support import linear_runs
from tests.support import processes
from tests.support import tiny_models

_DIM, _SLOTS, _CLIP = 24, 5, 0.7
_SPARSIFIERS = {
    'randk': fedsmp_tff.RandK(num=7),
    'topk': fedsmp_tff.TopK(num=7, public_examples=(np.zeros((1, 1)), np.zeros(1))),
    'dense': fedsmp_tff.Dense(),
}


def _hostile():
  """Updates that clients who want to be seen would send."""
  rng = np.random.default_rng(3)
  normal = rng.normal(size=_DIM).astype(np.float32)
  yield from (normal, 1e-3 * normal, 1e30 * normal, np.float32(1e-42) * normal)
  for value in (np.nan, np.inf, -np.inf, 3e38):
    yield np.where(np.arange(_DIM) < 8, np.float32(value), normal)
  yield np.eye(_DIM, dtype=np.float32)[0] * 1e9
  yield -1e9 * normal


class TestMechanism:

  @pytest.mark.parametrize('kind', mechanism_lib.NOISES)
  @pytest.mark.parametrize(
      'name, adaptive', [*((name, False) for name in _SPARSIFIERS), ('randk', True)]
  )
  def test_releases_are_within_the_sensitivity(self, name, kind, adaptive):
    num_values = _SPARSIFIERS[name].num_kept(_DIM) + adaptive
    factory = processes.factory(
        _SPARSIFIERS[name], 3, clipping_norm=_CLIP, noise_multiplier=1.3, num_slots=_SLOTS,
        noise=mechanism_lib.make_noise(kind, num_values),
        adaptive_clipping=fedsmp_tff.AdaptiveClipping() if adaptive else None,
    )
    mechanism = factory.round([(_DIM,)])
    state = mechanism.choose(
        mechanism.initial_state(seed=4), lambda seed: tf.linspace(1.0, 2.0, _DIM)
    )
    others = np.random.default_rng(1).normal(size=(_SLOTS - 1, _DIM)).astype(np.float32)

    @tf.function
    def release(update):
      reports = [
          mechanism.report(u, state, randomness.fold_in(tf.constant([7, 7], tf.int64), i))
          for i, u in enumerate([update, *others])
      ]
      update, after, _ = mechanism.finish(mechanism.sum(reports), state)
      return update, after.clipping_norm, reports[0]['values']

    outcomes = [release(u) for u in [np.zeros(_DIM, np.float32), *_hostile()]]
    channel, encoding = mechanism.channel, mechanism.channel.encoding
    # The encoding adds half a step per value and client, or the longest rounding.
    slack = math.sqrt(channel.num_integers) * encoding.step
    if kind != mechanism_lib.Gaussian.name:
      slack = math.sqrt(encoding.squared_norm_bound) * encoding.step - 1
    weight = fedsmp_tff.AdaptiveClipping().value_weight(1.3, 3) if adaptive else 1.0
    reached = 0.0
    for (first, _, report), (second, _, other_report) in itertools.combinations(outcomes, 2):
      moved = 3 * np.linalg.norm(first - second)
      replaced = first is not outcomes[0][0]
      bound = _CLIP * (1 + replaced) * (1 + slack) / weight
      assert moved <= bound + 1e-6
      reached = max(reached, moved / (_CLIP * (1 + replaced)))
      if kind == mechanism_lib.Gaussian.name:
        continue
      # The integers that leave the client: the same noise, so they differ by at most the
      # norms that the accountant takes.
      apart = np.asarray(report, np.int64) - np.asarray(other_report, np.int64)
      half = encoding.modulus // 2
      apart = (apart + half) % encoding.modulus - half
      assert np.sum(apart**2) <= (1 + replaced) ** 2 * encoding.squared_norm_bound
    # Two opposite clients come close to it: the bound is not an empty one.
    assert reached > 0.9 * weight
    # The next C is a function of the noisy votes alone, which move by one at most.
    norms = np.array([float(norm) for _, norm, _ in outcomes])
    most = math.exp(0.2 * (1 / 3 + 2 * slack)) + 1e-6 if adaptive else 1.0
    assert norms.max() / norms.min() <= most


class _Recording(fedsmp_tff.Sparsifier):
  """A sparsifier that also remembers the last release, for a test to see."""

  def __init__(self, recorded):
    self._recorded = recorded
    for name in ('num_kept', 'scale', 'public_training', 'mask_rounds'):
      setattr(self, name, getattr(recorded, name))

  def num_kept(self, dim):
    raise NotImplementedError  # `__init__` has the recorded one's.

  def initial_memory(self, dim):
    zeros = tf.zeros([self.num_kept(dim)], tf.float64)
    nothing = state_lib.Release(tf.cast(zeros, tf.int32), zeros, zeros, tf.constant(True))
    return self._recorded.initial_memory(dim), nothing

  def remember(self, memory, release):
    return self._recorded.remember(memory[0], release), release

  def choose(self, context):
    return self._recorded.choose(context._replace(memory=context.memory[0]))


class TestProcess:

  @pytest.mark.parametrize('name, sampling', [
      ('randk', 'poisson'), ('topk', 'poisson'), ('dense', 'poisson'), ('topk', 'fixed_size'),
  ])
  def test_models_are_within_the_sensitivity_after_a_round(self, name, sampling):
    spec = fedsmp_tff.PrivacySpec(8, 3, 1, 0.8, 0.05, 1e-2, sampling)
    sparsifier = {
        'randk': fedsmp_tff.RandK(num=4),
        'topk': fedsmp_tff.TopK(num=4, public_examples=linear_runs.PUBLIC),
    }.get(name, fedsmp_tff.Dense())
    process = fedsmp_tff.build_fed_smp(
        tiny_models.linear_regression(),
        fedsmp_tff.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), 4, epochs=2),
        fedsmp_tff.FedSmpFactory(sparsifier, spec.mechanism()), seed=5,
    )
    clients = [tiny_models.regression_examples(6, seed=i) for i in range(8)]
    cohort = spec.sampler(seed=2).sample(0)
    (position,) = np.nonzero(cohort == max(cohort))[0]

    def weights_after(mine):
      data = []
      for i, client in enumerate(cohort):
        x, y = mine if i == position else clients[max(client, 0)]
        if client < 0:
          x, y = x[:0], y[:0]
        data.append(fedsmp_tff.tag_client(client, tf.data.Dataset.from_tensor_slices((x, y))))
      return linear_runs.flat(process.next(process.initialize(), data).state.global_model_weights)

    x, y = clients[max(cohort)]
    outcomes = [
        weights_after(mine)
        for mine in ((x[:0], y[:0]), (x, y), (x, -50 * y), (1e20 * x, y), (x * np.nan, y))
    ]
    for i, j in itertools.combinations(range(5), 2):
      moved = np.linalg.norm(outcomes[i] - outcomes[j])
      assert moved <= 0.05 * (1 + (i > 0)) / 3 + 1e-6
    assert np.linalg.norm(outcomes[0] - outcomes[1]) > 0.9 * 0.05 / 3
    # An update that is not finite counts as absent.
    np.testing.assert_allclose(outcomes[4], outcomes[0], atol=1e-7)


def _halved(t):
  return 0.5 ** tf.cast(t, tf.float32)


_CHOICES = {
    'released top-k': (fedsmp_tff.ReleasedTopK(num=4), {}),
    'top-k': (fedsmp_tff.TopK(num=4, public_examples=linear_runs.PUBLIC), {}),
    'a mask for two rounds': (fedsmp_tff.ReleasedTopK(num=4, mask_rounds=2), {}),
    'server schedule': (fedsmp_tff.RandK(num=4), {
        'server_optimizer': tff.learning.optimizers.schedule_learning_rate(
            tff.learning.optimizers.build_adam(0.01), _halved
        )
    }),
}


class TestServer:

  @pytest.mark.parametrize('name', _CHOICES)
  def test_releases_alone_determine_the_run(self, name):
    # Whoever has the first state and the releases has all coordinates and weights that follow:
    # nothing else of a client went in.
    sparsifier, options = _CHOICES[name]
    optimizer = options.get('server_optimizer', tff.learning.optimizers.build_sgdm(1.0))
    model, training = tiny_models.linear_regression(), linear_runs.training()
    process = processes.fed_smp(
        model, training, _Recording(sparsifier), clients_per_round=3, clipping_norm=0.3,
        noise_multiplier=0.5, **options,
    )
    round_ = round_lib.FedSmpRound(sparsifier, fedsmp_tff.Mechanism(3), [(4, 2), (2,)])
    public = sparsifier.public_training()

    def public_update(seed):
      trainable = (tf.constant(weights[:8].reshape(4, 2)), tf.constant(weights[8:]))
      trained = training.train(
          model, tff.learning.models.ModelWeights(trainable, ()),
          tuple(map(tf.constant, public.examples)), state.client_work, seed,
      )
      return tf.concat([tf.reshape(part, [-1]) for part in tf.nest.flatten(trained)], 0)

    state = process.initialize()
    replayed = state.aggregator._replace(memory=sparsifier.initial_memory(10))
    weights = linear_runs.flat(state.global_model_weights)
    finalizer = optimizer.initialize(tf.TensorSpec([10]))
    for _ in range(4):
      state = process.next(state, linear_runs.datasets()).state
      release = state_lib.Release(*state.aggregator.memory[1])
      np.testing.assert_array_equal(release.coordinates, replayed.coordinates)
      update = np.zeros(10)
      update[release.coordinates] = release.values
      replayed = replayed._replace(
          round_num=replayed.round_num + 1, memory=sparsifier.remember(replayed.memory, release)
      )
      finalizer, weights = optimizer.next(
          finalizer, tf.constant(weights), tf.cast(update, tf.float32)
      )
      weights = weights.numpy()
      replayed = round_.choose(replayed, public and public_update)
      np.testing.assert_array_equal(state.aggregator.coordinates, replayed.coordinates)
      np.testing.assert_allclose(linear_runs.flat(state.global_model_weights), weights, atol=1e-6)
