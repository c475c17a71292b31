"""Tests of structures as vectors and back."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import flattening

_VALUE = collections.OrderedDict(
    b=np.arange(4, dtype=np.float32).reshape(2, 2), a=np.arange(4, 7, dtype=np.float32)
)
_TYPE = tff.to_type(collections.OrderedDict(b=(np.float32, [2, 2]), a=(np.float32, [3])))


class TestFlattener:

  def test_flatten_keeps_the_order_of_the_type(self):
    flattener = flattening.Flattener(_TYPE)
    assert (flattener.shapes, flattener.dim) == ([(2, 2), (3,)], 7)
    np.testing.assert_array_equal(flattener.flatten(_VALUE), np.arange(7, dtype=np.float32))

  @pytest.mark.parametrize('value', [
      _VALUE, np.float32(0.25), (np.full(2, 0.5, np.float32), [np.float32(1), {'b': np.float64(2)}]),
  ])
  def test_unflatten_inverts_flatten(self, value):
    flattener = flattening.Flattener(
        tff.to_type(tf.nest.map_structure(lambda v: tff.TensorType(v.dtype.type, v.shape), value))
    )
    back = flattener.unflatten(flattener.flatten(value))
    tf.nest.assert_same_structure(back, value)
    tf.nest.map_structure(np.testing.assert_array_equal, back, value)

  def test_structures_without_a_container_are_flattened(self):
    inner = tff.structure.Struct([('b', np.ones(2, np.float32))])
    value = tff.structure.Struct([('a', np.float32(2)), (None, inner)])
    inner_type = tff.StructType([('b', (np.float32, [2]))])
    flattener = flattening.Flattener(tff.StructType([('a', np.float32), (None, inner_type)]))
    np.testing.assert_array_equal(flattener.flatten(value), [2, 1, 1])

  @pytest.mark.parametrize('second, dtype', [(np.float32, tf.float32), (np.float64, tf.float64)])
  def test_vector_has_the_highest_precision(self, second, dtype):
    value = [np.float32(1), second(2)]
    flattener = flattening.Flattener(tff.to_type([np.float32, second]))
    vector = flattener.flatten(value)
    assert vector.dtype == dtype
    assert [part.dtype for part in flattener.unflatten(vector)] == [tf.float32, dtype]

  @pytest.mark.parametrize('value_type', [
      np.int32, (np.float32, [None]), (np.float16, [3]), (np.float32, [0]), (np.float32, [2**31]),
      tff.SequenceType(np.float32), tff.StructType([]),
  ])
  def test_unsupported_types_are_refused(self, value_type):
    with pytest.raises(TypeError, match='`value_type` must .*Found'):
      flattening.Flattener(tff.to_type(value_type))
