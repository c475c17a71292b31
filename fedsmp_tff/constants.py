"""Arrays as constants of a TensorFlow graph, whatever their size.

A graph is one protocol buffer, which has at most 2 GiB. Larger arrays are files that the
graph reads when it runs: in this process, or in another of this machine as TFF's worker. (On a
Ray cluster only this process runs graphs with constants; clients get weights as arguments.)
"""

import os
import tempfile
from typing import Any
import weakref

import numpy as np
import tensorflow as tf

# Two such structures, the weights and the public examples, fit a graph.
_MAX_BYTES = 2**30 - 2**20
# Files of this process. They have no names, so that nothing is left of them when it ends,
# however it does; a graph may read them until then.
_FILES = []
# The path of an array's file by the array's id while there is that array: the graphs of a
# process have the same ones.
_PATHS = {}


def tensors(structure: Any) -> Any:
  """Returns a structure of arrays or eager tensors as tensors of the graph being built.

  If they have more than about 1 GiB in all, their bytes go into a file in the directory of
  `tempfile` (its TMPDIR), which takes as much disk until this process ends. Strings stay
  constants.

  Args:
    structure: Arrays of any shapes and dtypes that TensorFlow has.

  Raises:
    OSError: If the directory has no room for the file.
  """
  arrays = tf.nest.map_structure(np.asarray, structure)
  if sum(array.nbytes for array in tf.nest.flatten(arrays)) <= _MAX_BYTES:
    return tf.nest.map_structure(tf.convert_to_tensor, structure)
  return tf.nest.map_structure(_read, arrays)


def _read(array: np.ndarray) -> tf.Tensor:
  if array.dtype.kind in 'OSU':
    return tf.constant(array)
  if id(array) not in _PATHS:
    _PATHS[id(array)] = _write(array)
    weakref.finalize(array, _PATHS.pop, id(array))
  content = tf.io.read_file(_PATHS[id(array)])
  return tf.reshape(tf.io.decode_raw(content, array.dtype), array.shape)


def _write(array: np.ndarray) -> str:
  """Returns the path of a new file with the array's bytes."""
  file = tempfile.TemporaryFile()
  try:
    array.tofile(file)
    file.flush()
  except OSError as error:
    raise OSError(
        f'{array.nbytes} bytes of weights or public examples, too many for a graph, could not'
        f' be written into {tempfile.gettempdir()} ({error}); set TMPDIR to a directory with'
        ' more room.'
    ) from None
  _FILES.append(file)
  return f'/proc/{os.getpid()}/fd/{file.fileno()}'
