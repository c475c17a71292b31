"""Tests of values of TFF types as tensors and datasets, and back."""

import collections
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff.runtime import values


class _Pair(NamedTuple):
  a: object
  b: object


_PAIR = tff.StructWithPythonType([('a', np.int32), ('b', (np.float32, (2,)))], _Pair)


class TestComputation:

  @pytest.mark.parametrize('value, type_spec', [
      (1.5, tff.TensorType(np.int32)),
      (np.float64(1), tff.TensorType(np.float32)),
      (tf.constant(1, tf.int64), tff.TensorType(np.int32)),
      ([1.0, 2.0, 3.0], tff.TensorType(np.float32, (2,))),
      ('text', tff.TensorType(np.float32)),
      ({'a': 1}, _PAIR), ((1,), _PAIR), (3, _PAIR),
      (3, tff.SequenceType(np.int32)),
      (tf.data.Dataset.range(3), tff.SequenceType(np.int32)),
      (1, tff.FunctionType(None, np.int32)),
  ])
  def test_values_of_wrong_types_are_refused(self, value, type_spec):
    with pytest.raises(TypeError):
      values.leaves_of(value, type_spec)


class TestExecution:

  @pytest.mark.parametrize('value', [
      _Pair(1, [2.0, 3.0]),
      {'b': np.array([2, 3], np.float32), 'a': 1},
      [tf.constant(1), tf.constant([2.0, 3.0])],
      collections.OrderedDict(a=np.int32(1), b=(2.0, 3.0)),
  ])
  def test_containers_are_converted_and_back(self, value):
    leaves = values.leaves_of(value, _PAIR)
    assert [leaf.dtype for leaf in leaves] == [tf.int32, tf.float32]
    back = values.value_of(leaves, tff.FederatedType(_PAIR, tff.SERVER))
    assert isinstance(back, _Pair) and back.a == 1
    np.testing.assert_array_equal(back.b, [2, 3])

  @pytest.mark.parametrize('value, shape', [
      ([], ()), ([1, 2, 3], ()), (tf.data.Dataset.from_tensor_slices([1, 2]), ()),
      ([[1], [2, 3]], (None,)),
  ])
  def test_sequences_become_datasets(self, value, shape):
    [dataset] = values.leaves_of(value, tff.SequenceType(tff.TensorType(np.int32, shape)))
    assert [np.asarray(x).tolist() for x in dataset] == [np.asarray(x).tolist() for x in value]
