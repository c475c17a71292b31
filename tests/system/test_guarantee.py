"""Tests of the tables in docs/aggregator.md: what keeps the guarantee, of all that TFF composes."""

import collections
import functools
import inspect
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

import fedsmp_tff
from fedsmp_tff.program import loop
from tests.support import leaks
from tests.support import linear_runs
from tests.support import numpy_reference
from tests.support import processes
from tests.support import tiny_models

pytestmark = pytest.mark.usefixtures('without_determinism')

_PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'aggregator.md'
_CLIENTS, _CLIP = 3, 0.7
_FUNCTIONAL = tiny_models.linear_regression()
_SGD = tff.learning.optimizers.build_sgdm(0.05)
_VALUE = tff.to_type([(np.float32, [4, 2]), (np.float32, [2])])
_ALGORITHMS, _AGGREGATORS = tff.learning.algorithms, tff.aggregators
_NOTHING = {'metrics_aggregator': fedsmp_tff.no_client_metrics}


def _ours(noise_multiplier=0.0):
  return processes.factory(
      fedsmp_tff.Dense(), _CLIENTS, clipping_norm=_CLIP, noise_multiplier=noise_multiplier
  )


def _weighted():
  return _AGGREGATORS.as_weighted_aggregator(_ours())


def _reconstruction_model():
  inputs = tf.keras.layers.Input((4,))
  shared, own = tf.keras.layers.Dense(2), tf.keras.layers.Dense(2)
  return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
      keras_model=tf.keras.Model(inputs, own(shared(inputs))),
      global_layers=[shared], local_layers=[own],
      input_spec=(tf.TensorSpec([None, 4]), tf.TensorSpec([None, 2])),
  )


def _rate(unused_round_num):
  return 0.05


def _model_fn():
  return tff.learning.models.model_from_functional(_FUNCTIONAL)


_SGD_OF = tff.learning.optimizers.build_sgdm
# The first arguments of each builder; `_build` has all that the table says to do.
_ARGUMENTS = {
    'build_unweighted_fed_avg': (_FUNCTIONAL, _SGD),
    'build_weighted_fed_avg': (_FUNCTIONAL, _SGD),
    'build_weighted_fed_avg_with_optimizer_schedule': (_model_fn, _rate, _SGD_OF),
    'build_unweighted_fed_prox': (_FUNCTIONAL, 0.5, _SGD),
    'build_weighted_fed_prox': (_FUNCTIONAL, 0.5, _SGD),
    'build_fed_sgd': (_FUNCTIONAL, _SGD_OF(1.0)),
    'build_fed_recon': (_reconstruction_model,),
    'build_unweighted_mime_lite': (_FUNCTIONAL, _SGD),
    'build_weighted_mime_lite': (_FUNCTIONAL, _SGD),
    'build_mime_lite_with_optimizer_schedule': (_FUNCTIONAL, _rate, _SGD),
}


@functools.cache
def _build(name, gradients=True, **metrics):
  """Builds a process; `gradients` is whether mime's have an aggregator of their own."""
  make = _ours if 'unweighted' in name else _weighted
  options = {'model_aggregator': make()}
  if name == 'build_fed_recon':
    options = {
        'model_aggregator_factory': make(), 'loss_fn': tf.keras.losses.MeanSquaredError,
    }
  if 'mime' in name and gradients:
    options['full_gradient_aggregator'] = make()
  return getattr(_ALGORITHMS, name)(*_ARGUMENTS[name], **options, **metrics)


@tff.tensorflow.computation
def _norm(value):
  return collections.OrderedDict(norm=tf.linalg.global_norm(tf.nest.flatten(value)))


# Those that keep the guarantee.
_WRAPPERS = {
    'as_weighted_aggregator': _AGGREGATORS.as_weighted_aggregator,
    'concat_factory': _AGGREGATORS.concat_factory,
    'HadamardTransformFactory': _AGGREGATORS.HadamardTransformFactory,
    'DiscreteFourierTransformFactory': _AGGREGATORS.DiscreteFourierTransformFactory,
    'add_measurements': lambda inner: _AGGREGATORS.add_measurements(
        inner, server_measurement_fn=lambda mean: tff.federated_map(_norm, mean)
    ),
    'DifferentiallyPrivateFactory': lambda inner: _AGGREGATORS.DifferentiallyPrivateFactory(
        tfp.NormalizedQuery(tfp.GaussianSumQuery(100.0, 0.0), _CLIENTS), inner
    ),
}


def _created(factory):
  if isinstance(factory, _AGGREGATORS.WeightedAggregationFactory):
    return factory.create(_VALUE, tff.TensorType(np.float32))
  return factory.create(_VALUE)


def _computation(name):
  if name in _ARGUMENTS:
    return _build(name, **_NOTHING).next
  return _created(_WRAPPERS[name](_ours())).next


def _answer(computation):
  sums = leaks.sums_of_clients(computation)
  if sums.plain or sums.other or not sums.reports:
    return 'no'
  return {1: 'yes', 2: 'two releases'}[sums.reports]


def _table():
  """Maps each name of the page's tables to its answer."""
  section = _PAGE.read_text(encoding='utf-8').split('\n## What keeps the guarantee\n')[1]
  answers = {}
  for row in re.findall(r'^\|(.+)\|$', section.split('\n## ')[0], re.MULTILINE):
    names, answer = row.split('|')[:2]
    for name in re.findall(r'`([A-Za-z_]+)`', names):
      assert name not in answers
      answers[name] = answer.strip()
  return answers


class TestTable:

  def test_table_lists_all_algorithms_and_aggregators(self):
    public = {name for name in dir(_ALGORITHMS) if name.startswith('build_')}
    # Types, functions of one sum, and an estimate of quantiles: no aggregators.
    no_aggregators = {
        'AggregationFactory', 'UnweightedAggregationFactory', 'WeightedAggregationFactory',
        'PrivateQuantileEstimationProcess', 'federated_sample', 'secure_quantized_sum',
    }
    wrappers = {
        name
        for module, pattern in ((_AGGREGATORS, '^[^_]'), (tff.learning, '_aggregator$|^add_debug'))
        for name, symbol in inspect.getmembers(module)
        if re.search(pattern, name) and not inspect.ismodule(symbol)
    }
    table = _table()
    assert {*table} == public | (wrappers - no_aggregators)
    assert {name for name in table if table[name] != 'no'} == {*_ARGUMENTS, *_WRAPPERS}

  @pytest.mark.parametrize('name', [*_ARGUMENTS, *_WRAPPERS])
  def test_client_uploads_match_the_table(self, name):
    assert _answer(_computation(name)) == _table()[name]

  @pytest.mark.parametrize('name', ['build_unweighted_mime_lite', 'build_weighted_mime_lite'])
  def test_mime_sums_gradients_in_the_clear_by_default(self, name):
    process = _build(name, gradients=False, **_NOTHING)
    sums = leaks.sums_of_clients(process.next)
    assert {(4, 2), (2,)} < {tuple(type_.shape) for type_ in sums.plain}

  def test_client_measurements_break_the_guarantee(self):
    def norms(values):
      return collections.OrderedDict(norm=tff.federated_sum(tff.federated_map(_norm, values)))

    factory = _AGGREGATORS.add_measurements(_ours(), client_measurement_fn=norms)
    assert _answer(_created(factory).next) == 'no'

  def test_a_secure_count_breaks_the_guarantee(self):
    factory = _AGGREGATORS.clipping_factory(
        1.0, _ours(), clipped_count_sum_factory=_AGGREGATORS.SecureSumFactory(1, 0)
    )
    sums = leaks.sums_of_clients(_created(factory).next)
    assert not sums.plain and sums.other

  @pytest.mark.parametrize('metrics', [_NOTHING, {}])
  def test_a_ledger_refuses_sums_in_the_clear(self, metrics):
    process = _build('build_unweighted_mime_lite', gradients=not metrics, **metrics)
    spec = fedsmp_tff.PrivacySpec(6, _CLIENTS, 1, 1.0, _CLIP, 1e-3, sampling='fixed_size')
    with pytest.raises(ValueError, match='no_client_metrics'):
      loop.run(
          process, lambda i: None, spec.sampler(), 1, lambda *unused: None, [], ledger=object()
      )


class TestValues:
  """Compares results with independent readings in NumPy."""

  @pytest.mark.parametrize('name', [
      'build_weighted_fed_avg', 'build_weighted_fed_avg_with_optimizer_schedule',
      'build_weighted_fed_prox', 'build_fed_sgd', 'build_unweighted_fed_avg',
  ])
  def test_clients_are_weighted_equally(self, name):
    # One step of full-batch SGD; at learning rate 1 the update is the gradient.
    rate = 1.0 if name == 'build_fed_sgd' else 0.05
    examples = [tiny_models.regression_examples(num, seed=num) for num in (1, 5, 40)]
    before, output, moved = self._round(_build(name, **_NOTHING), [
        tf.data.Dataset.from_tensor_slices(e).batch(len(e[0])) for e in examples
    ])
    updates = [
        np.concatenate(list(map(np.ravel, numpy_reference.linear_regression_update(
            before.trainable, *e, batches=[slice(None)], learning_rate=rate, momentum=0.0
        ))))
        for e in examples
    ]
    expected = numpy_reference.mean_without_noise(updates, np.arange(10), 1.0, _CLIP)
    np.testing.assert_allclose(moved, expected, atol=2e-6)
    assert output.metrics['aggregator']['participants'] == _CLIENTS

  def _round(self, process, clients):
    """Returns the weights before a round, its output, and how far it moved the weights."""
    state = process.initialize()
    output = process.next(state, clients)
    before, after = map(process.get_model_weights, (state, output.state))
    return before, output, linear_runs.flat(before) - linear_runs.flat(after)

  def test_two_releases_of_mime_have_independent_noise(self):
    process = _ALGORITHMS.build_unweighted_mime_lite(
        _FUNCTIONAL, _SGD_OF(0.05, momentum=0.9), model_aggregator=_ours(1.0),
        full_gradient_aggregator=_ours(1.0), **_NOTHING,
    )
    # Clients without examples: all that is released is noise.
    dataset = tf.data.Dataset.from_tensor_slices(tiny_models.regression_examples(2))
    apart, moves = [], []
    for _ in range(2):
      _, output, moved = self._round(process, [dataset.batch(2).take(0)] * _CLIENTS)
      accumulator = output.state.client_work[0]['accumulator']
      gradient = np.concatenate([np.ravel(part) for part in accumulator])
      apart.append(np.abs(gradient - moved))
      moves.append(np.abs(moved))
    # Standard deviation C sigma / r = 0.23 each: two independent values are within 1e-5 of one
    # another with a probability of 2.4e-5, in both rounds 6e-10, one of ten coordinates 6e-9;
    # noise used twice would be within 1e-6 in both.
    assert np.max(apart, axis=0).min() > 1e-5 and np.max(moves, axis=0).min() > 0
