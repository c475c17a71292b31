"""Tests of the aggregator: its types, what leaves a client, and its masks."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from fedsmp_tff import sparsifiers
from tests.support import leaks
from tests.support import one_round
from tests.support import processes


class TestComputation:

  def test_gaussian_noise_sends_one_secure_sum_of_integers(self):
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
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    plain, bitwidth, secure, modular = leaks.form_of(process.next).work.type_signature.result
    assert [len(part) for part in (plain, bitwidth, modular)] == [0, 0, 0]
    report = tff.to_type(
        collections.OrderedDict(values=tff.TensorType(np.int32, [5]), participants=np.int32)
    )
    assert len(secure) == 1
    tff.test.assert_types_equivalent(secure[0], report)

  def test_bad_sparsifiers_are_refused(self):
    with pytest.raises(TypeError, match='Sparsifier'):
      processes.factory(0.5, 3)
    factory = processes.factory(sparsifiers.RandK(num=one_round.DIM + 1), 3)
    with pytest.raises(ValueError, match=f'at most.*{one_round.DIM}'):
      factory.create(one_round.VECTOR)

  def test_integer_noise_sends_integers_modulo_2_to_the_b(self):
    factory = processes.factory(
        sparsifiers.RandK(num=5), 3, clipping_norm=1.0, noise_multiplier=1.0,
        noise='discrete_gaussian', bits=12,
    )
    process = factory.create(one_round.VECTOR)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    form = leaks.form_of(process.next)
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

    one, other, fresh = map(process, (0, 2, None))
    assert len(set(masks(one))) == 3
    assert masks(one) == masks(process(0)) != masks(other)
    assert masks(fresh) != masks(fresh)
