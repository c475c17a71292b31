"""Checks a task's data against the input of its model, before a run writes or trains anything."""

from __future__ import annotations

from collections.abc import Iterator
import typing
from typing import Any, Optional

import numpy as np

from tasks import errors
from tasks.datasets import files
from tasks.datasets import task as task_lib

if typing.TYPE_CHECKING:
  import tensorflow as tf


def check_spec(name: str, input_spec: Any) -> None:
  """Raises `InputError` if the `input_spec` of a task's model is not of x and of classes."""
  if (
      not isinstance(input_spec, (tuple, list)) or len(input_spec) != 2
      or not all(hasattr(spec, 'shape') for spec in input_spec)
  ):
    raise errors.InputError(
        f'--task={name}: `input_spec` of its model must be a pair of `tf.TensorSpec`s, of x and of'
        f' labels. Found {input_spec}.'
    )
  labels = input_spec[1]
  if not (labels.dtype.is_integer or labels.dtype.is_bool):
    raise errors.InputError(
        f'--task={name}: labels must be classes, int32, of which accuracy is computed, but'
        f" `input_spec` of its model has {labels.dtype.name}. Return classes from `load` (of one-hot"
        ' labels `np.argmax(y, axis=-1)`), and convert them in the loss.'
    )


def check_data(
    name: str, data: task_lib.TaskData, input_spec: tuple[tf.TensorSpec, tf.TensorSpec],
    num_classes: Optional[int] = None, padding: Optional[int] = None,
) -> None:
  """Raises `InputError` if a task's examples do not fit its model, or are not finite.

  The clip would hide a NaN: its client sends zeros, and the run would end without an error. A label
  without a logit is a NaN on a GPU.

  Args:
    name: The task's name.
    data: The task's data.
    input_spec: Checked by `check_spec`.
    num_classes: Number of classes of the model; None if unknown.
    padding: Label of padding, of any value; None without padding.
  """
  highest = np.iinfo(np.int64).max if num_classes is None else num_classes - 1
  for owner, examples in _sets(data):
    fault = _fault(examples, input_spec)
    if not fault:
      labels = examples[1] if padding is None else examples[1][examples[1] != padding]
      try:
        files.check_labels(labels, 0, highest)
      except ValueError as error:
        fault = f'wrong labels: {error}. Number the classes from 0 in `load`.'
    if fault:
      raise errors.InputError(f'--task={name}: {owner} has {fault}')


def _sets(data: task_lib.TaskData) -> Iterator[tuple[str, Any]]:
  """Yields each set of examples, with words for it."""
  yield 'the validation set' if data.has_validation else 'the test set', data.test
  if data.public is not None:
    yield 'the public set', data.public
  for number, examples in enumerate(data.clients):
    yield f'client {data.client_ids[number] if data.client_ids else number!r}', examples


def _fault(examples: Any, input_spec: tuple[tf.TensorSpec, tf.TensorSpec]) -> str:
  """Returns what is wrong with a set of examples, and what to do; '' if nothing is."""
  if not (
      isinstance(examples, (tuple, list)) and len(examples) == 2
      and all(isinstance(array, np.ndarray) for array in examples)
  ):
    return 'examples that are not a pair of NumPy arrays. Return (x, y) from `load`.'
  if len({len(array) for array in examples}) > 1:
    return f'{len(examples[0])} x and {len(examples[1])} labels. Return as many of each.'
  for name, array, spec in zip(('x', 'labels'), examples, input_spec):
    if array.dtype != spec.dtype.as_numpy_dtype or not spec.shape[1:].is_compatible_with(
        array.shape[1:]
    ):
      return (
          f'{name} of {array.dtype}{array.shape}, but `input_spec` of the model has'
          f' {spec.dtype.name}{spec.shape}. Convert {name} in `load` (`astype` for the type), or'
          ' change `input_spec`.'
      )
    if np.issubdtype(array.dtype, np.inexact) and not np.all(np.isfinite(array)):
      [row, *_] = np.argwhere(~np.isfinite(array))[0]
      return (
          f'a value in {name} that is not finite, first in example {row}. Remove or replace such'
          ' values in `load`.'
      )
  return ''
