"""Tests of rounds in each place: the same results, the same errors, nothing but integers."""

import collections
import functools

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import randomness
from fedsmp_tff import runtime
from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import local
from tests.support import processes
from tests.support import tiny_models

_INTS = tff.FederatedType(np.int32, tff.CLIENTS)


def _at(placement, member):
  return tff.FederatedType(member, placement)


@tff.federated_computation(_INTS)
def _return_to_clients(x):
  return x


@tff.federated_computation(_INTS, _at(tff.CLIENTS, np.float32))
def _sums(x, y):
  return (
      tff.federated_sum(x),
      collections.OrderedDict(floats=tff.federated_sum(y)),
      tff.federated_secure_sum(x, 100),
      tff.federated_secure_sum_bitwidth(x, 7),
      tff.backends.mapreduce.federated_secure_modular_sum(x, 16),
  )


@functools.cache
def _fed_smp(clients_per_round=6, public=False, **options):
  sparsifier = fedsmp_tff.RandK(0.5)
  if public:
    sparsifier = fedsmp_tff.TopK(
        0.5, public_examples=tiny_models.regression_examples(9, seed=99), public_clients=2,
        mask_rounds=2,
    )
  return processes.fed_smp(
      tiny_models.linear_regression(),
      fedsmp_tff.LocalTraining(tff.learning.optimizers.build_sgdm(0.1, 0.5), 3, epochs=2),
      sparsifier, clients_per_round=clients_per_round, clipping_norm=1.0, noise_multiplier=1.0,
      **options,
  )


def _data(num):
  return [
      tf.data.Dataset.from_tensor_slices(tiny_models.regression_examples(7, seed=i))
      for i in range(num)
  ]


_CONTEXTS = {
    'local': runtime.local_context,
    'local, 1 worker': lambda: runtime.local_context(workers=1),
    'local, 2 devices': lambda: runtime.local_context(['CPU:0', 'cpu:1'], 2),
    'ray': lambda: runtime.ray_context(workers=2),
}


@pytest.fixture(scope='module', params=list(_CONTEXTS))
def each_context(request):
  """Runs the module's tests in each place, one place after the other."""
  with _CONTEXTS[request.param]():
    yield request.param


# Places that differ in how clients' results come back, for what else does not depend on the place.
_local_and_ray = pytest.mark.parametrize(
    'each_context', ['local', pytest.param('ray', marks=pytest.mark.slow)], indirect=True
)


def _leaves(structure):
  return [np.asarray(leaf) for leaf in tf.nest.flatten(structure)]


class TestComputation:

  def test_a_computation_without_form_names_another_context(self):
    with runtime.local_context(), pytest.raises(
        runtime.NoMapReduceFormError, match=r'has no MapReduceForm .*tff\.backends\.test\.'
    ):
      _return_to_clients([1, 2])

  def test_arguments_of_wrong_types_are_refused(self):
    with runtime.local_context():
      with pytest.raises(TypeError, match='Expected a list'):
        _sums(3, [1.0])
      with pytest.raises(TypeError, match='Expected a value of type float32'):
        _sums([3], ['a'])
      with pytest.raises(ValueError, match='equal lengths'):
        _sums([3], [1.0, 2.0])

  def test_only_k_integers_and_counts_leave_a_client(self, monkeypatch):
    left = []
    results_of = graphs.ClientsFunction.results

    def watch(self, *arguments):
      for results in results_of(self, *arguments):
        left.append(results)
        yield results

    monkeypatch.setattr(graphs.ClientsFunction, 'results', watch)
    process = _fed_smp()
    with runtime.local_context():
      process.next(process.initialize(), _data(6))
    assert len(left) == 6
    for results in left:
      assert [r.shape for r in results] == [(5,), ()]  # k = 5 of d = 10
      assert all(np.issubdtype(r.dtype, np.integer) for r in results)

  def test_data_of_the_wrong_type_name_the_client(self):
    x, y = tiny_models.regression_examples(7)
    process = _fed_smp()
    with runtime.local_context():
      state = process.initialize()
      for wrong in (x[:, :2], x.astype(np.float64)):
        data = _data(6)
        data[1] = tf.data.Dataset.from_tensor_slices((wrong, y))
        with pytest.raises(TypeError, match='Expected a dataset of type') as raised:
          process.next(state, data)
        assert raised.value.__notes__ == ['(from client 1 of the round, counted from 0)']


class TestExecution:

  @_local_and_ray
  def test_every_kind_of_sum_adds_up(self, each_context):
    total, floats, secure, by_width, modular = _sums([5, 6, 7], [0.5, 1.0, 2.0])
    assert (total, secure, by_width, modular) == (18, 18, 18, 2)
    assert floats['floats'] == 3.5 and floats['floats'].dtype == np.float32

  def test_sums_of_floats_are_in_the_order_of_clients(self, each_context):
    # Any other order gives another sum: the large ones must cancel first.
    values = [1e8, -1e8] + [1.0] * 30 + [1e8, -1e8]
    assert _sums([1] * 34, values)[1]['floats'] == np.float32(
        np.add.accumulate(np.array(values, np.float32))[-1]
    )

  def _three_rounds(self):
    # As many clients as workers on Ray add up in batches.
    process = _fed_smp(clients_per_round=12, public=True, seed=1)
    data = [fedsmp_tff.tag_client(i, d) for i, d in enumerate(_data(12))]
    state = process.initialize()
    for _ in range(3):
      output = process.next(state, data)
      state = output.state
    return output

  @pytest.fixture(scope='class')
  def elsewhere(self):
    with runtime.local_context(workers=2):
      return self._three_rounds().state

  def test_a_round_is_equal_in_every_context(self, elsewhere, each_context):
    output = self._three_rounds()
    assert type(output.state) is tff.learning.templates.LearningAlgorithmState
    assert output.metrics['aggregator']['participants'] == 12
    for one, other in zip(_leaves(output.state), _leaves(elsewhere)):
      np.testing.assert_array_equal(one, other)

  @_local_and_ray
  def test_a_client_error_ends_the_round_not_the_context(self, each_context):
    @tff.tensorflow.computation(np.int32)
    def positive(x):
      with tf.control_dependencies([tf.debugging.assert_positive(x, 'not positive')]):
        return tf.identity(x)

    @tff.federated_computation(_INTS)
    def total(x):
      mapped = tff.federated_map(positive, x)
      return tff.federated_sum(mapped), tff.federated_secure_sum(mapped, 10)

    with pytest.raises(tf.errors.InvalidArgumentError, match='not positive') as raised:
      total([1, 2, 4, 5, 6, 7, -3])
    assert '(from client 6 ' in raised.value.__notes__[0]
    with pytest.raises(ValueError, match='^Client 2 of the round submitted integers 11 to 11'):
      total([1, 2, 11])
    # Nothing of a round that failed is in the next one.
    assert total([1, 2, 3]) == (6, 6)

  # Workers that share their randomness would share noise: on Ray in `make test` too.
  @pytest.mark.parametrize('each_context', ['local', 'ray'], indirect=True)
  def test_fresh_noise_differs_between_clients_and_rounds(self, each_context, monkeypatch):
    # 2 x 200 clients: after the first hundred they run in groups of eight per call.
    @tff.tensorflow.computation(np.int32)
    def row(client):
      return tf.one_hot(client, 200, dtype=tf.int64)[:, None] * (randomness.fresh_seed() // 16)

    @tff.federated_computation(_INTS)
    def draw(clients):
      return tff.federated_secure_sum_bitwidth(tff.federated_map(row, clients), 60)

    monkeypatch.setattr(graphs, '_SHORT_SECONDS', 60.0)  # On a busy machine too.
    groups, grouped = [], graphs._grouped
    monkeypatch.setattr(graphs, '_grouped', lambda *a: groups.append(grouped(*a)) or groups[-1])
    seeds = [tuple(seed) for _ in range(2) for seed in draw(list(range(200)))]
    assert len({*seeds}) == 400 and all(all(seed) for seed in seeds)
    assert len(groups) == (each_context == 'local')  # Ray's workers are other processes.

  @_local_and_ray
  def test_a_wrong_number_of_clients_is_named_first(self, each_context):
    process = _fed_smp()
    state = process.initialize()
    for num_clients in (5, 7):
      with pytest.raises(
          tf.errors.InvalidArgumentError,
          match='^The round must have exactly 6 participants, one for each of `num_slots`',
      ):
        process.next(state, _data(num_clients))

  @_local_and_ray
  def test_stock_processes_of_keras_models_equal_numpy(self, each_context):
    def model_fn():
      return tff.learning.models.from_keras_model(
          tf.keras.Sequential([
              tf.keras.layers.InputLayer((4,)),
              tf.keras.layers.Dense(2, kernel_initializer=tf.keras.initializers.Constant(0.1)),
          ]),
          loss=tf.keras.losses.MeanSquaredError(),
          input_spec=(tf.TensorSpec([None, 4]), tf.TensorSpec([None, 2])),
          metrics=[tf.keras.metrics.MeanSquaredError()],
      )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        tff.learning.optimizers.build_sgdm(0.1),
        model_aggregator=tff.learning.secure_aggregator(),
    )
    batches = [d.batch(3) for d in _data(5)]
    output = process.next(process.initialize(), batches)
    weights = process.get_model_weights(output.state)
    # Computed by hand: three steps per client from 0.1, mean over clients weighted by examples.
    moved = []
    for i in range(5):
      x, y = tiny_models.regression_examples(7, seed=i)
      w, b = np.full((4, 2), 0.1), np.zeros(2)
      for rows in (slice(0, 3), slice(3, 6), slice(6, 7)):
        error = 2 * (x[rows] @ w + b - y[rows]) / y[rows].size
        w, b = w - 0.1 * x[rows].T @ error, b - 0.1 * error.sum(axis=0)
      moved.append(w)
    # The secure aggregator quantizes, here to less than 1e-4.
    np.testing.assert_allclose(weights.trainable[0], np.mean(moved, axis=0), atol=1e-4)
    metrics = output.metrics['client_work']['train']  # Variables, summed over clients.
    assert metrics['mean_squared_error'] > 0

  @pytest.mark.slow
  def test_a_round_equals_that_of_the_tff_worker(self):
    process = _fed_smp(seed=1)
    data = [fedsmp_tff.tag_client(i, d) for i, d in enumerate(_data(6))]
    states = []
    for context in (
        tff.backends.test.create_sync_test_cpp_execution_context(),
        local._create(None, 2),
    ):
      with tff.framework.get_context_stack().install(context):
        states.append(_leaves(process.next(process.initialize(), data).state))
    for child in psutil.Process().children():  # TFF leaves its worker behind.
      child.kill()
    for tffs, ours in zip(*states, strict=True):  # It is another build of TensorFlow.
      np.testing.assert_allclose(tffs, ours, rtol=1e-5, atol=1e-6)
