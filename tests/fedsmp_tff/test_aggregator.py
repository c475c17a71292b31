"""Tests of the aggregator: its types, what leaves a client, and what it composes with."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import sparsifiers
from tests.support import leaks
from tests.support import numpy_reference
from tests.support import one_round
from tests.support import processes
from tests.support import tiny_models


def _form(process):
  """The graphs of a round, to see what leaves a client."""

  @tff.federated_computation(*process.next.type_signature.parameter)
  def state_and_result(state, value):
    output = process.next(state, value)
    return output.state, output.result

  return tff.backends.mapreduce.get_map_reduce_form_for_computation(state_and_result)


class TestComputation:

  def test_types(self):
    process = processes.factory(
        sparsifiers.RandK(num=5), 3, clipping_norm=1.0, noise_multiplier=1.0
    ).create(one_round.VECTOR)
    assert isinstance(process, tff.templates.AggregationProcess)
    assert not process.is_weighted
    result = process.next.type_signature.result
    assert result.result == tff.FederatedType(one_round.VECTOR, tff.SERVER)
    assert result.measurements.member == tff.to_type(collections.OrderedDict(
        participants=np.int32, released=np.int32, clipping_norm=np.float64,
        signal_to_noise=np.float64,
    ))

  def test_only_integers_leave_a_client_and_only_through_a_secure_sum(self):
    process = processes.factory(
        sparsifiers.RandK(num=5), 3, clipping_norm=1.0, noise_multiplier=1.0
    ).create(one_round.VECTOR)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    form = _form(process)
    plain, bitwidth, secure, modular = form.work.type_signature.result
    assert [len(part) for part in (plain, bitwidth, modular)] == [0, 0, 0]
    report = tff.to_type(
        collections.OrderedDict(values=tff.TensorType(np.int32, [5]), participants=np.int32)
    )
    assert len(secure) == 1
    tff.test.assert_types_equivalent(secure[0], report)

  def test_refuses_other_sparsifiers_and_too_many_coordinates(self):
    with pytest.raises(TypeError, match='Sparsifier'):
      processes.factory(0.5, 3)
    factory = processes.factory(sparsifiers.RandK(num=one_round.DIM + 1), 3)
    with pytest.raises(ValueError, match=f'at most.*{one_round.DIM}'):
      factory.create(one_round.VECTOR)

  def test_integers_modulo_2_to_the_b_are_all_that_leaves(self):
    factory = processes.factory(
        sparsifiers.RandK(num=5), 3, clipping_norm=1.0, noise_multiplier=1.0,
        noise='discrete_gaussian', bits=12,
    )
    process = factory.create(one_round.VECTOR)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    form = _form(process)
    plain, bitwidth, secure, modular = form.work.type_signature.result
    assert [len(part) for part in (plain, bitwidth)] == [0, 0]
    assert str(secure) == '<int32>' and str(modular) == '<int32[6]>'
    assert form.secure_modular_sum_modulus() == (2**12,)


class TestExecution:

  def test_masks_change_by_round_and_follow_the_seed(self):
    def process(seed):
      return processes.factory(sparsifiers.RandK(num=5), 1, seed=seed).create(one_round.VECTOR)

    def masks(process):
      state = process.initialize()
      found = []
      for round_num in range(3):
        assert state.round_num == round_num
        found.append(tuple(state.coordinates))
        state = process.next(state, [np.ones(one_round.DIM, np.float32)]).state
      return found

    one, other, fresh = map(process, (1, 2, None))
    assert len(set(masks(one))) == 3
    assert masks(one) == masks(process(1)) != masks(other)
    assert masks(fresh) != masks(fresh)

  @pytest.mark.parametrize(
      'value',
      [
          np.float32(0.25),
          collections.OrderedDict(b=np.full((2, 2), 0.5, np.float32), a=np.full(3, 0.25)),
          (np.full(2, 0.5, np.float32), [np.float32(1.0), np.float32(2.0)]),
      ],
  )
  def test_any_structure_comes_back_as_it_went(self, value):
    factory = processes.factory(sparsifiers.Dense(), 2)
    value_type = tff.to_type(
        tf.nest.map_structure(lambda v: tff.TensorType(v.dtype.type, v.shape), value)
    )
    _, output = one_round.run(factory, [value, value], value_type)
    tf.nest.assert_same_structure(output.result, value)
    for got, sent in zip(tf.nest.flatten(output.result), tf.nest.flatten(value)):
      assert np.asarray(got).dtype == sent.dtype
      np.testing.assert_allclose(got, sent, atol=1e-6)


class TestComposition:
  """Unchanged in processes that are not ours."""

  _CLIENTS, _LEARNING_RATE = 3, 0.05

  def _factory(self):
    return processes.factory(
        sparsifiers.RandK(num=4), self._CLIENTS, clipping_norm=0.7, noise_multiplier=0.0
    )

  def test_stock_fed_avg(self):
    model = tiny_models.linear_regression()
    process = tff.learning.algorithms.build_unweighted_fed_avg(
        lambda: tff.learning.models.model_from_functional(model),
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(self._LEARNING_RATE),
        model_aggregator=self._factory(),
        metrics_aggregator=fedsmp_tff.no_client_metrics,
    )
    state = process.initialize()
    before = process.get_model_weights(state).trainable
    examples = [tiny_models.regression_examples(6, seed=i) for i in range(self._CLIENTS)]
    output = process.next(state, [tf.data.Dataset.from_tensor_slices(e).batch(6) for e in examples])
    after = process.get_model_weights(output.state).trainable
    # One step of full-batch SGD.
    updates = []
    for part in examples:
      update = numpy_reference.linear_regression_update(
          before, *part, batches=[np.arange(6)], learning_rate=self._LEARNING_RATE, momentum=0.0
      )
      updates.append(np.concatenate([np.ravel(array) for array in update]))
    expected = numpy_reference.mean_without_noise(
        updates, state.aggregator.coordinates, 10 / 4, 0.7
    )
    got = np.concatenate([(b - a).reshape(-1) for b, a in zip(before, after)])
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert output.metrics['aggregator']['participants'] == self._CLIENTS
    leaks.check_nothing_else_leaves_clients(process, output.metrics)
