"""Converts values of TFF types to tensors and datasets, and tensors back to values."""

from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

Leaf = Union[tf.Tensor, tf.data.Dataset]


def leaves_of(value: Any, type_spec: tff.Type) -> list[Leaf]:
  """Returns the tensors and datasets that make up a value, in the order of its type.

  Args:
    value: A value that TFF takes for `type_spec`: Python containers, numbers, arrays, tensors,
      and datasets or lists of elements.
    type_spec: A type of tensors, sequences and structures of them, not placed.

  Returns:
    A tensor for each tensor type, a dataset for each sequence.

  Raises:
    TypeError: If the value is not of that type.
  """
  if isinstance(type_spec, tff.TensorType):
    return [_tensor(value, type_spec)]
  if isinstance(type_spec, tff.SequenceType):
    return [_dataset(value, type_spec)]
  if isinstance(type_spec, tff.StructType):
    return [
        leaf
        for member, member_type in zip(members_of(value, type_spec), type_spec)
        for leaf in leaves_of(member, member_type)
    ]
  raise TypeError(f'A value can\'t be of type {type_spec} here.')


def members_of(value: Any, type_spec: tff.StructType) -> list[Any]:
  """Returns a container's members in the order of its type; raises TypeError if they differ."""
  names = [name for name, _ in tff.structure.to_elements(type_spec)]
  if isinstance(value, Mapping):
    if set(value) != set(names):
      raise TypeError(f'Expected {type_spec}. Found the keys {list(value)}.')
    return [value[name] for name in names]
  try:
    members = list(value)  # Lists, tuples, named or not, and TFF's own structures.
  except TypeError:
    if not all(name and hasattr(value, name) for name in names):
      raise TypeError(f'Expected {type_spec}. Found {type(value)}.') from None
    members = [getattr(value, name) for name in names]
  if len(members) != len(names):
    raise TypeError(f'Expected {type_spec}. Found {len(members)} members.')
  return members


def value_of(tensors: Sequence[tf.Tensor], type_spec: tff.Type) -> Any:
  """Inverts `leaves_of`: returns NumPy values in the containers of the type."""
  rest = iter(tensors)
  return tff.types.structure_from_tensor_type_tree(
      lambda _: next(rest).numpy(), without_placement(type_spec)
  )


def without_placement(type_spec: tff.Type) -> tff.Type:
  """Returns the type with each `T@SERVER` in it replaced by T."""
  if isinstance(type_spec, tff.FederatedType):
    return type_spec.member
  if isinstance(type_spec, tff.StructType):
    members = [
        (name, without_placement(member)) for name, member in tff.structure.to_elements(type_spec)
    ]
    if isinstance(type_spec, tff.StructWithPythonType):
      return tff.StructWithPythonType(members, type_spec.python_container)
    return tff.StructType(members)
  return type_spec


def tensor_of(leaf: Leaf) -> tf.Tensor:
  """Returns a leaf as input of a graph: a dataset as its variant tensor."""
  return tf.data.experimental.to_variant(leaf) if isinstance(leaf, tf.data.Dataset) else leaf


def _tensor(value: Any, type_spec: tff.TensorType) -> tf.Tensor:
  dtype = tf.as_dtype(type_spec.dtype.type)
  if tf.is_tensor(value):
    tensor = tf.convert_to_tensor(value)
    fits = tensor.dtype == dtype
  else:
    array = np.asarray(value)
    # As in TFF, Python numbers take the type's precision, and arrays keep theirs.
    fits = array.dtype == type_spec.dtype.type or (
        not hasattr(value, 'dtype')
        and (dtype == tf.string or np.can_cast(array.dtype, dtype.as_numpy_dtype, 'same_kind'))
    )
    tensor = tf.constant(value, dtype) if fits else None
  if not fits or not tf.TensorShape(type_spec.shape).is_compatible_with(tensor.shape):
    given = tensor if fits else value
    raise TypeError(
        f'Expected a value of type {type_spec}. Found one of type'
        f' {getattr(given, "dtype", type(value))} and shape {np.shape(value)}.'
    )
  return tensor


def _dataset(value: Any, type_spec: tff.SequenceType) -> tf.data.Dataset:
  if isinstance(value, tf.data.Dataset):
    value_type = tff.SequenceType(tff.types.tensorflow_to_type(value.element_spec))
    if not type_spec.is_assignable_from(value_type):
      raise TypeError(f'Expected a dataset of type {type_spec}. Found {value_type}.')
    return value
  if not isinstance(value, Sequence):
    raise TypeError(
        f'Expected a `tf.data.Dataset` or a list of elements of type {type_spec.element}. Found'
        f' {type(value)}.'
    )
  specs = tff.types.type_to_tf_tensor_specs(type_spec.element)
  elements = [
      tf.nest.pack_sequence_as(specs, leaves_of(element, type_spec.element)) for element in value
  ]
  if not elements:
    return tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(
        lambda spec: tf.zeros([0, *(d or 0 for d in spec.shape)], spec.dtype), specs
    ))
  # Elements may differ in shape, which `from_tensor_slices` does not take.
  datasets = [tf.data.Dataset.from_tensors(element) for element in elements]
  return tf.data.Dataset.from_tensor_slices(datasets).flat_map(lambda d: d)
