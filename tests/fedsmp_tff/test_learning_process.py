"""Tests of Fed-SMP as a learning process."""

import collections
import contextlib
import functools
import itertools
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import sparsifiers
from tests.support import distributions
from tests.support import linear_runs
from tests.support import numpy_reference
from tests.support import processes
from tests.support import tiny_models


def _decayed(round_num):
  return linear_runs.RATE * 0.5 ** tf.cast(round_num, tf.float32)


def _topk(**options):
  return sparsifiers.TopK(num=4, public_examples=linear_runs.PUBLIC, **options)


def _build(sparsifier, sigma=0.0, clip=0.5, training=None, **options):
  return processes.fed_smp(
      tiny_models.linear_regression(),
      training or linear_runs.training(),
      sparsifier,
      clients_per_round=linear_runs.CLIENTS,
      clipping_norm=clip,
      noise_multiplier=sigma,
      **options,
  )


# How each is built, its scale and its C.
_METHODS = {
    'fedsmp_randk': (functools.partial(_build, sparsifiers.RandK(num=4)), 10 / 4, 0.5),
    'unscaled': (functools.partial(_build, sparsifiers.RandK(num=4, unbiased=False)), 1.0, 0.5),
    'fedsmp_topk': (functools.partial(_build, _topk()), 1.0, 0.5),
    'dp_fedavg': (functools.partial(_build, sparsifiers.Dense()), 1.0, 0.5),
    'fedavg': (functools.partial(_build, sparsifiers.Dense(), clip=None), 1.0, None),
    'fedavg_randk': (functools.partial(_build, sparsifiers.RandK(num=4), clip=None), 10 / 4, None),
    'fedavg_topk': (functools.partial(_build, _topk(), clip=None), 1.0, None),
}
# The coordinates of every round, where no state has them.
_FIXED = {'dp_fedavg': range(linear_runs.DIM), 'fedavg': range(linear_runs.DIM)}


class TestComputation:

  @pytest.mark.parametrize('change, match', [
      (dict(model='model'), 'functional_model_from_keras'),
      (dict(training='training'), 'LocalTraining'),
      (dict(aggregator=0.5), 'FedSmpFactory'),
      (dict(server_optimizer='sgd'), 'Optimizer'),
  ])
  def test_arguments_of_wrong_types_are_refused(self, change, match):
    arguments = dict(
        model=tiny_models.linear_regression(), training=linear_runs.training(),
        aggregator=processes.factory(sparsifiers.Dense()),
    )
    with pytest.raises(TypeError, match=match):
      fedsmp_tff.build_fed_smp(**{**arguments, **change})

  def test_a_schedule_without_a_learning_rate_is_refused(self):
    class NoRate(tff.learning.optimizers.Optimizer):
      def initialize(self, specs):
        return collections.OrderedDict()

      def next(self, state, weights, gradients):
        return state, weights

    training = fedsmp_tff.LocalTraining(NoRate(), 2, epochs=1, learning_rate_fn=_decayed)
    with pytest.raises(ValueError, match='learning_rate_fn'):
      _build(sparsifiers.Dense(), training=training)


  def test_moving_averages_of_a_model_warn(self):
    plain = tiny_models.linear_regression()
    averages = np.zeros(2, np.float32), np.ones(2, np.float32)
    model = tff.learning.models.FunctionalModel(
        initial_weights=(plain.initial_weights[0], averages), loss_fn=plain.loss,
        predict_on_batch_fn=plain.predict_on_batch, input_spec=plain.input_spec,
    )
    with pytest.warns(UserWarning, match='batch normalization.*Use .*GroupNormalization'):
      fedsmp_tff.build_fed_smp(
          model, linear_runs.training(), processes.factory(sparsifiers.Dense())
      )

  @pytest.mark.parametrize('has_dropout, seed', [(True, 0), (True, 7), (True, None), (False, 7)])
  def test_random_numbers_outside_the_seed_warn(self, has_dropout, seed):
    model = tiny_models.linear_regression()
    model = tiny_models.with_dropout(model) if has_dropout else model
    factory = processes.factory(sparsifiers.Dense())
    expected = contextlib.nullcontext()
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      if has_dropout and seed is not None:
        expected = pytest.warns(match=r'random numbers in training \(RandomUniform\)')
      with expected:
        fedsmp_tff.build_fed_smp(model, linear_runs.training(), factory, seed=seed)


class TestExecution:

  @pytest.mark.parametrize('name', _METHODS)
  def test_two_rounds_equal_numpy_by_secure_sums_alone(self, name):
    build, scale, clip = _METHODS[name]
    process, fixed = build(), _FIXED.get(name)
    linear_runs.check_two_rounds(process, scale, clip, topk=name.endswith('topk'), fixed=fixed)
    linear_runs.check_only_a_secure_sum_of_integers(process, kept=len(fixed or range(4)))

  @pytest.mark.parametrize('keys, public_keys', [('xy', None), ('yx', 'xy')])
  def test_examples_in_mappings_train_to_the_weights_of_pairs(self, keys, public_keys):
    def form(pair, names=keys):
      examples = dict(zip('xy', pair))
      return collections.OrderedDict((name, examples[name]) for name in names) if names else pair

    pairs = tiny_models.linear_regression()
    model = tff.learning.models.FunctionalModel(
        initial_weights=pairs.initial_weights, predict_on_batch_fn=pairs.predict_on_batch,
        loss_fn=pairs.loss, input_spec=form(pairs.input_spec),
    )
    public = form(linear_runs.PUBLIC, public_keys)
    process = processes.fed_smp(
        model, linear_runs.training(), sparsifiers.TopK(num=4, public_examples=public),
        clients_per_round=linear_runs.CLIENTS, clipping_norm=0.5, noise_multiplier=0.0,
    )
    linear_runs.check_two_rounds(process, 1.0, 0.5, topk=True, form=form)

  def test_a_mask_is_held_until_weights_are_set(self):
    held = 2
    process = _build(
        _topk(mask_rounds=held), training=linear_runs.training(learning_rate_fn=_decayed)
    )
    state = process.initialize()
    weights, masks = [], []
    for _ in range(5):
      rate = process.get_hparams(state)['client_work']['learning_rate']
      assert rate == pytest.approx(linear_runs.RATE * 0.5 ** len(masks))
      weights.append(process.get_model_weights(state))
      masks.append(np.asarray(state.aggregator.coordinates))
      state = process.next(state, linear_runs.datasets()).state
    for round_num, mask in enumerate(masks):
      made = round_num - round_num % held
      public = linear_runs.numpy_update(
          weights[made], linear_runs.PUBLIC, linear_runs.RATE * 0.5**made
      )
      np.testing.assert_array_equal(mask, numpy_reference.top_coordinates(public, 4))
    # The test would see nothing if the masks did not change on the way.
    assert len({tuple(mask) for mask in masks}) > 1
    # Within the rounds of a mask other weights have other top coordinates.
    before, weights = state.aggregator.coordinates, process.get_model_weights(state)
    other = tff.learning.models.ModelWeights(tuple(10 - 3 * w for w in weights.trainable), ())
    state = process.set_model_weights(state, other)
    np.testing.assert_array_equal(
        linear_runs.flat(process.get_model_weights(state)), linear_runs.flat(other)
    )
    public = linear_runs.numpy_update(other, linear_runs.PUBLIC, linear_runs.RATE * 0.5**5)
    np.testing.assert_array_equal(
        state.aggregator.coordinates, numpy_reference.top_coordinates(public, 4)
    )
    assert not np.array_equal(state.aggregator.coordinates, before)

  @pytest.mark.parametrize('seed', [None, 5])
  def test_a_client_draws_new_examples_in_each_round(self, seed):
    x, y = linear_runs.examples()[0]
    dataset = linear_runs.datasets()[0]
    process = processes.fed_smp(
        tiny_models.linear_regression(), linear_runs.training(max_examples=3),
        sparsifiers.Dense(), clients_per_round=1, seed=seed,
    )

    def draws():
      """Returns the examples that two clients with the same data drew in each of four rounds."""
      state, sets = process.initialize(), []
      for _ in range(4):
        before = process.get_model_weights(state)
        for client in (0, 1):
          data = dataset if seed is None else fedsmp_tff.tag_client(client, dataset)
          after = process.next(state, [data]).state
          moved = linear_runs.flat(before) - linear_runs.flat(process.get_model_weights(after))
          updates = {
              rows: linear_runs.numpy_update(before, (x[[*rows]], y[[*rows]]), linear_runs.RATE)
              for rows in itertools.combinations(range(8), 3)
          }
          (rows,) = [r for r, u in updates.items() if np.allclose(moved, u, atol=2e-5, rtol=1e-4)]
          sets.append(rows)
        state = after
      return sets

    # Of 56 sets, one and the same in four rounds with probability 6e-6, for one client of two;
    # the clients' sets are equal in all rounds with probability 1e-7.
    sets = draws()
    assert len({*sets[::2]}) > 1 and len({*sets[1::2]}) > 1 and sets[::2] != sets[1::2]
    assert (draws() == sets) == (seed is not None)

  def test_set_hparams_sets_the_rates(self):
    process = _build(sparsifiers.Dense(), clip=None)
    state = process.initialize()
    hparams = process.get_hparams(state)
    assert hparams['finalizer']['learning_rate'] == 1.0
    hparams['client_work']['learning_rate'] = np.float32(0.0)
    state = process.set_hparams(state, hparams)
    after = process.next(state, linear_runs.datasets()).state
    np.testing.assert_array_equal(
        linear_runs.flat(process.get_model_weights(after)),
        linear_runs.flat(process.get_model_weights(state)),
    )

  @pytest.mark.parametrize('seed', [None, 0])
  def test_released_noise_has_the_stated_scale(self, seed):
    model = tiny_models.linear_regression(features=4500, outputs=2)
    clip, sigma = 0.4, 1.4
    process = processes.fed_smp(
        model, linear_runs.training(), sparsifiers.RandK(num=6000),
        clients_per_round=linear_runs.CLIENTS, clipping_norm=clip, noise_multiplier=sigma,
        seed=seed,
    )
    assert process.seeded == (seed is not None)
    empty = tf.data.Dataset.from_tensor_slices(tiny_models.regression_examples(0, features=4500))
    datasets = [empty] * linear_runs.CLIENTS
    if seed is not None:
      datasets = [fedsmp_tff.tag_client(i, empty) for i in range(linear_runs.CLIENTS)]
    state = process.initialize()
    after = process.next(state, datasets).state
    # Subtracting from float32 weights of size 1 rounds by 1e-7.
    moved = linear_runs.flat(process.get_model_weights(state)) - linear_runs.flat(
        process.get_model_weights(after)
    )
    released = moved[state.aggregator.coordinates]
    # Three clients that share their noise would be off by sqrt(3).
    distributions.assert_normal(released, clip * sigma / linear_runs.CLIENTS)
    off = np.setdiff1d(np.arange(len(moved)), state.aggregator.coordinates)
    assert not np.any(moved[off])
