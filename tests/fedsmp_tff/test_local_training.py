"""Tests of local training: of clients, and on public data."""

import collections
import gc
import itertools
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import flattening
from fedsmp_tff import local_training
from fedsmp_tff import runtime
from fedsmp_tff import sparsifiers
from tests.support import linear_runs
from tests.support import numpy_reference
from tests.support import tiny_models

_SGDM = tff.learning.optimizers.build_sgdm(0.1, 0.9)
_UNIT_SGD = tff.learning.optimizers.build_sgdm(1.0)
_SEED = tf.constant([1, 2], tf.int64)
_NUM = len(linear_runs.PUBLIC[0])


def _train(training, examples, seed=_SEED, model=None, hparams=None):
  model = model or tiny_models.linear_regression()
  weights = tff.learning.models.ModelWeights(
      *tf.nest.map_structure(tf.constant, model.initial_weights)
  )

  @tf.function
  def train(weights, examples):
    return training.train(
        model, weights, examples, hparams or training.initial_hparams(weights.trainable), seed
    )

  update = train(weights, tf.nest.map_structure(tf.constant, examples))
  return [part.numpy() for part in update]


def _count_visits(training, num_examples):
  """How often each example is visited, by batch: a model whose gradient counts."""

  @tf.function
  def predict_on_batch(model_weights, x, training):
    del training
    (w,) = model_weights[0]
    return tf.linalg.matvec(x, w)

  model = tff.learning.models.FunctionalModel(
      initial_weights=((np.zeros(num_examples, np.float32),), ()),
      predict_on_batch_fn=predict_on_batch,
      loss_fn=lambda output, label, sample_weight=None: tf.reduce_sum(output),
      input_spec=(tf.TensorSpec([None, num_examples]), tf.TensorSpec([None, 1])),
  )
  one_hot = np.eye(num_examples, dtype=np.float32)
  (update,) = _train(training, (one_hot, np.zeros((num_examples, 1), np.float32)), model=model)
  return update


class TestComputation:

  @pytest.mark.parametrize('options, match', [
      (dict(), 'Exactly one'),
      (dict(epochs=1, steps=1), 'Exactly one'),
      (dict(epochs=0), '`epochs` must be a positive integer'),
      (dict(steps=-1), '`steps` must be a positive integer'),
      (dict(epochs=1, batch_size=0), '`batch_size` must be a positive'),
      (dict(epochs=1, max_examples=0), '`max_examples` must be a positive integer'),
  ])
  def test_options_out_of_range_are_refused(self, options, match):
    with pytest.raises(ValueError, match=match):
      local_training.LocalTraining(_SGDM, **{'batch_size': 3, **options})

  def test_a_keras_optimizer_is_refused(self):
    with pytest.raises(TypeError, match='tff.learning.optimizers.Optimizer'):
      local_training.LocalTraining(tf.keras.optimizers.SGD(), 3, epochs=1)

  @pytest.mark.parametrize('non_trainable, warns', [
      ([np.zeros(3), np.ones(3)], True),
      ([np.ones([2, 3]), np.ones(3), np.zeros(3), np.ones(3)], True),
      ([], False),
      ([np.ones([2, 3]), np.zeros(3)], False),  # A frozen dense layer.
      ([np.ones(3), np.zeros(3)], False),  # A frozen group normalization.
      ([np.full(3, 0.2), np.full(3, 1.3)], False),  # Averages of a trained model.
      ([np.zeros(3), np.ones(4)], False),
  ])
  def test_untrained_moving_averages_warn(self, non_trainable, warns):
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter('always')
      local_training.warn_about_batch_norm(non_trainable)
    assert ['batch normalization' in str(warning.message) for warning in caught] == [True] * warns

  @pytest.mark.parametrize('examples, found', [
      ({'pixels': 1, 'label': 2}, r"keys \['pixels', 'label'\]"), ({'x': 1, 'y': 2, 'w': 3}, 'keys'),
      ((1, 2, 3), 'tuple'), (np.zeros([2, 3]), 'ndarray'),
  ])
  def test_examples_without_x_and_y_are_refused(self, examples, found):
    with pytest.raises(ValueError, match=f'pairs .x, y. or mappings.*Found {found}'):
      local_training.x_and_y(examples)


class TestExecution:

  @pytest.mark.parametrize('num_examples, batch_size', [(7, 3), (2, 5)])
  def test_an_epoch_visits_each_example_once(self, num_examples, batch_size):
    training = local_training.LocalTraining(_UNIT_SGD, batch_size, epochs=4)
    # Each visit moves the example's own weight by the rate, 1.
    np.testing.assert_array_equal(_count_visits(training, num_examples), np.full(num_examples, 4.0))

  def test_steps_span_several_epochs(self):
    training = local_training.LocalTraining(_UNIT_SGD, 2, steps=5)
    visits = _count_visits(training, 6)
    # Three steps an epoch: each example once, and four of the six again.
    assert sorted(visits) == [1, 1, 2, 2, 2, 2]

  def test_each_epoch_has_a_new_order(self):
    orders = []
    for steps in (1, 4, 7):
      training = local_training.LocalTraining(_UNIT_SGD, 4, steps=steps)
      # 12 examples, 3 steps an epoch: the first batch of epochs 0, 1 and 2.
      orders.append(tuple(_count_visits(training, 12) - (steps // 3)))
    # Two epochs' first batches agree with probability 1/495; the seed is fixed.
    assert len(set(orders)) == 3

  def test_the_seed_sets_the_order(self):
    training = local_training.LocalTraining(_SGDM, 2, epochs=2)
    examples = tiny_models.regression_examples(9)
    one, again, other = (
        _train(training, examples, tf.constant(seed, tf.int64)) for seed in ([1, 2], [1, 2], [1, 3])
    )
    np.testing.assert_array_equal(one[0], again[0])
    assert not np.array_equal(one[0], other[0])

  @pytest.mark.parametrize('length', [dict(epochs=3), dict(steps=3)])
  def test_no_examples_give_no_update(self, length):
    training = local_training.LocalTraining(_SGDM, 2, **length)
    for part in _train(training, tiny_models.regression_examples(0)):
      assert not np.any(part)

  def test_any_tff_optimizer_trains(self):
    training = local_training.LocalTraining(tff.learning.optimizers.build_adam(0.01), 4, epochs=1)
    # Adam's first step is its rate, whatever the gradient.
    for part in _train(training, tiny_models.regression_examples(4)):
      np.testing.assert_allclose(np.abs(part), 0.01, rtol=1e-3)

  def test_mappings_train_as_pairs_in_any_order_of_keys(self):
    x, y = tiny_models.regression_examples(9)
    training = local_training.LocalTraining(_SGDM, 2, epochs=2)
    expected = _train(training, (x, y))
    for form in (
        collections.OrderedDict(y=y, x=x), collections.namedtuple('Example', 'x y')(x, y),
    ):
      tf.nest.map_structure(np.testing.assert_array_equal, _train(training, form), expected)

  def test_examples_of_returns_all_of_a_dataset(self):
    x, y = tiny_models.regression_examples(5)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    for got, want in zip(local_training.examples_of(dataset), (x, y)):
      np.testing.assert_array_equal(got, want)
    empty = local_training.examples_of(dataset.take(0))
    assert [part.shape.as_list() for part in empty] == [[0, 4], [0, 2]]


class TestDraw:

  _NUM, _DRAWN = 8, 3

  def _draw(self, num=_NUM):
    training = local_training.LocalTraining(_SGDM, 2, epochs=1, max_examples=self._DRAWN)
    # Labels that a draw could prefer; x is the number of the example.
    examples = tf.range(num), tf.range(num) // (num // 2 or 1)
    return tf.function(lambda seed: training.draw(examples, seed))

  def test_draws_are_uniform_whatever_the_labels(self):
    draw, num = self._draw(), 3000
    drawn = np.zeros([num, self._NUM])
    for i in range(num):
      x, y = draw(tf.constant([i, 7], tf.int64))
      np.testing.assert_array_equal(y, np.asarray(x) // 4)
      assert len(x) == self._DRAWN and np.all(np.diff(x) > 0)
      drawn[i, np.asarray(x)] = 1
    # An example is drawn with probability 3/8, a pair with 3/8 * 2/7. The counts are binomial; that
    # one of 36 is five standard deviations off has a probability of 2e-5. The seeds are fixed.
    together = drawn.T @ drawn
    one, two = 3 / 8, 3 / 8 * 2 / 7
    for counts, expected in ((np.diag(together), one), (together[np.triu_indices(8, 1)], two)):
      deviation = np.sqrt(num * expected * (1 - expected))
      assert np.max(np.abs(counts - num * expected)) < 5 * deviation

  @pytest.mark.parametrize('num', [0, 2, 3])
  def test_a_client_below_the_limit_trains_on_all_examples(self, num):
    x, _ = self._draw(num)(_SEED)
    np.testing.assert_array_equal(x, np.arange(num))


def _public_update(**options):
  """The update of training on `PUBLIC`, as a function of a seed and of a norm to clip to."""
  model, training = tiny_models.linear_regression(), linear_runs.training()
  weights = tff.learning.models.ModelWeights(
      *tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
  )
  weights_type = tff.types.tensorflow_to_type(
      tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
  )
  update = local_training.PublicUpdate(
      local_training.TracedTraining(training, model),
      sparsifiers.PublicTraining(linear_runs.PUBLIC, **options),
      flattening.Flattener(weights_type.trainable),
  )
  hparams = training.initial_hparams(weights.trainable)
  return lambda seed, clip=np.inf: update(
      weights, hparams, tf.constant(clip, tf.float64), tf.constant(seed, tf.int64)
  ).numpy()


def _halves(clip):
  """Each way to cut the public examples into two pseudo-clients, and their clipped mean."""
  weights = tff.learning.models.ModelWeights(*tiny_models.linear_regression().initial_weights)
  x, y = linear_runs.PUBLIC
  means = {}
  for others in itertools.combinations(range(1, _NUM), _NUM // 2 - 1):
    first = [0, *others]
    second = [i for i in range(_NUM) if i not in first]
    updates = [
        linear_runs.numpy_update(weights, (x[rows], y[rows]), linear_runs.RATE)
        for rows in (first, second)
    ]
    clipped = [u * min(1.0, clip / np.linalg.norm(u)) for u in updates]
    means[tuple(first)] = np.mean(clipped, 0)
  return means


class TestPublicUpdate:

  def test_update_is_one_training_on_all_examples(self):
    weights = tff.learning.models.ModelWeights(*tiny_models.linear_regression().initial_weights)
    expected = linear_runs.numpy_update(weights, linear_runs.PUBLIC, linear_runs.RATE)
    np.testing.assert_allclose(_public_update()([1, 2]), expected, rtol=1e-5, atol=1e-6)

  @pytest.mark.parametrize('clip', [np.inf, 0.1])
  def test_update_is_the_clipped_mean_of_pseudo_clients(self, clip):
    halves, public_update = _halves(clip), _public_update(clients=2)
    cuts = set()
    for seed in range(6):
      update = public_update([seed, 0], clip)
      right = [
          cut for cut, mean in halves.items() if np.allclose(update, mean, rtol=1e-5, atol=1e-6)
      ]
      # Exactly one of the 35 cuts: no example is left out, or with both.
      assert len(right) == 1
      cuts.update(right)
    # Six of 35 at random are one and the same with probability 35^-5.
    assert len(cuts) > 1

  @pytest.mark.parametrize('clients', [None, 2])
  @pytest.mark.parametrize('value, rate', [(np.nan, 0.1), (1.0, 3e38)])  # NaN, infinity.
  def test_an_update_that_is_not_finite_is_an_error(self, value, rate, clients):
    x, y = linear_runs.PUBLIC
    x = np.concatenate([np.full_like(x[:1], value), x[1:]])
    training = local_training.LocalTraining(
        tff.learning.optimizers.build_sgdm(rate), 8, steps=1
    )
    factory = fedsmp_tff.FedSmpFactory(
        fedsmp_tff.TopK(num=4, public_examples=(x, y), public_clients=clients),
        fedsmp_tff.Mechanism(2, clipping_norm=1.0, noise_multiplier=1.0),
    )
    process = fedsmp_tff.build_fed_smp(
        tiny_models.linear_regression(), training, factory
    )
    with pytest.raises(
        runtime.CheckFailedError, match='^The update on public data is not finite, and would'
    ):
      process.initialize()

  def test_public_examples_outlive_the_process(self):
    x, y = tiny_models.regression_examples(4000, seed=5)
    optimizer = tff.learning.optimizers.build_sgdm(linear_runs.RATE, linear_runs.MOMENTUM)
    process = fedsmp_tff.build_fed_smp(
        tiny_models.linear_regression(),
        local_training.LocalTraining(optimizer, len(x), steps=linear_runs.STEPS),
        fedsmp_tff.FedSmpFactory(
            fedsmp_tff.TopK(num=4, public_examples=(x, y)),
            fedsmp_tff.Mechanism(2, clipping_norm=1.0, noise_multiplier=1.0),
        ),
    )
    initialize = process.initialize
    for comp in (initialize, process.next, process.set_model_weights):
      content = tff.framework.serialize_computation(comp).SerializeToString()
      assert x[:2].tobytes() not in content and y[:2].tobytes() not in content
    del process, comp
    gc.collect()
    weights = tff.learning.models.ModelWeights(*tiny_models.linear_regression().initial_weights)
    update = linear_runs.numpy_update(weights, (x, y), linear_runs.RATE)
    kept = initialize().aggregator.coordinates
    np.testing.assert_array_equal(np.sort(kept), numpy_reference.top_coordinates(update, 4))

  def test_public_labels_may_have_another_dtype_than_clients(self):
    x, labels = linear_runs.PUBLIC[0], np.arange(_NUM) % 3
    # NumPy's own integers, not the int32 of clients.
    public = x, labels.astype(np.int64)
    process = fedsmp_tff.build_fed_smp(
        tiny_models.softmax_regression(4, 3), linear_runs.training(),
        fedsmp_tff.FedSmpFactory(
            fedsmp_tff.TopK(0.5, public_examples=public),
            fedsmp_tff.Mechanism(2, clipping_norm=1.0, noise_multiplier=1.0),
        ),
    )
    clients = [tf.data.Dataset.from_tensor_slices((x, labels.astype(np.int32)))] * 2
    state = process.next(process.initialize(), clients).state
    assert state.aggregator.round_num == 1
