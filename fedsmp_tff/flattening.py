"""Converts between a structure of float tensors and one vector of its d elements."""

from collections.abc import Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

Shapes = Sequence[Sequence[int]]  # A model's tensors in order, with d elements in total.


class Flattener:
  """Flattens and unflattens values of one TFF type.

  >>> flattener = Flattener(tff.to_type([(np.float32, [2]), np.float32]))
  >>> flattener.shapes, flattener.dim
  ([(2,), ()], 3)
  >>> vector = flattener.flatten([[1.0, 2.0], 3.0])
  >>> vector.numpy().tolist()
  [1.0, 2.0, 3.0]
  >>> [part.numpy().tolist() for part in flattener.unflatten(vector)]
  [[1.0, 2.0], 3.0]

  Attributes:
    shapes: Shapes of the tensors, in order.
    dim: d, the number of elements of all tensors.
  """

  def __init__(self, value_type: tff.Type):
    """Initializes from a type.

    Args:
      value_type: A tensor or a structure of tensors, float32 or float64, of known shapes.

    Raises:
      TypeError: If `value_type` is a different type, or d is not from 1 to 2^31 - 1.
    """
    allowed = (np.float32, np.float64)
    leaves = tff.structure.flatten(value_type)
    if not tff.types.is_structure_of_floats(value_type) or not all(
        leaf.dtype.type in allowed and tff.types.is_shape_fully_defined(leaf.shape)
        for leaf in leaves
    ):
      raise TypeError(
          '`value_type` must be a structure of float32 or float64 tensors of known shapes. Found'
          f' {value_type}.'
      )
    self._type = value_type
    self.shapes = [tuple(leaf.shape) for leaf in leaves]
    self._sizes = sizes(self.shapes)
    self.dim = sum(self._sizes)
    if not 0 < self.dim < 2**31:
      raise TypeError(
          '`value_type` must have from 1 to 2^31 - 1 elements in total, the range of int32'
          f' coordinates. Found {self.dim}.'
      )
    is_double = any(leaf.dtype.type is np.float64 for leaf in leaves)
    self._dtype = tf.float64 if is_double else tf.float32

  def flatten(self, value: Any) -> tf.Tensor:
    """Returns the vector [d], float64 if any tensor is, else float32."""
    # In a list, since a single tensor is no container.
    leaves = tff.structure.flatten(tff.structure.from_container([value], recursive=True))
    return tf.concat([tf.reshape(tf.cast(leaf, self._dtype), [-1]) for leaf in leaves], axis=0)

  def unflatten(self, vector: tf.Tensor) -> Any:
    """Returns the structure whose tensors, cast to their types, make up `vector` [d]."""
    parts = iter(tf.split(vector, self._sizes))
    return tff.types.structure_from_tensor_type_tree(
        lambda leaf: tf.cast(tf.reshape(next(parts), leaf.shape), leaf.dtype), self._type
    )


def sizes(shapes: Shapes) -> list[int]:
  """Returns the number of elements of each tensor; they sum up to d."""
  return list(map(math.prod, shapes))
