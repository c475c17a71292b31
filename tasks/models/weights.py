"""A model's weights as a file."""

import pathlib
from typing import Any, BinaryIO
import zipfile
import zlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import errors as library_errors
from tasks import errors


def write(file: BinaryIO, weights: tff.learning.models.ModelWeights) -> None:
  """Writes the trainable weights and then the others, as arrays of an .npz file."""
  np.savez(file, *(np.asarray(array) for array in tf.nest.flatten(weights)))


def read(
    path: pathlib.Path, like: tuple[Any, Any], remedy: str
) -> tff.learning.models.ModelWeights:
  """Returns the weights that `write` wrote.

  Args:
    path: The file.
    like: The two structures of the weights: arrays of their shapes and types, None for any.
    remedy: What to do if they are damaged, as a sentence.

  Raises:
    InputError: If the file can't be read, or has other arrays.
  """
  expected = [
      None if array is None else library_errors.describe_array(np.asarray(array))
      for array in tf.nest.flatten(like)
  ]
  try:
    # Without pickles, which are programs.
    with np.load(path, allow_pickle=False) as file:
      arrays = [file[name] for name in file]
    forms = [*map(library_errors.describe_array, arrays)]
    if len(forms) != len(expected) or any(e not in (None, f) for f, e in zip(forms, expected)):
      wanted = ', '.join(form or 'any' for form in expected)
      raise ValueError(f'its arrays are {", ".join(forms)}, those of the model {wanted}')
  # NumPy raises these on files that are no archives of arrays, or cut ones.
  except (
      ArithmeticError, AttributeError, EOFError, KeyError, MemoryError, OSError, RuntimeError,
      TypeError, ValueError, zipfile.BadZipFile, zlib.error,
  ) as error:
    raise errors.InputError(
        f'{path} can\'t be read ({type(error).__name__}: {error}). {remedy}'
    ) from None
  return tff.learning.models.ModelWeights(*tf.nest.pack_sequence_as(like, arrays))
