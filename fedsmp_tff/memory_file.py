"""Arrays that graphs read from memory, in place of constants."""

import os
from typing import Any

import tensorflow as tf


class MemoryFile:
  """An array in a file in memory, which graphs that run on this machine read.

  A process has several graphs with the public examples. As constants, each byte would be in memory
  about forty times, in the copies that TFF and TensorFlow make of a graph. The file stays until the
  process ends: a graph can outlive every object that names it here, and a descriptor that is closed
  and used again would give it other examples, without an error.
  """

  def __init__(self, array: Any):
    proto = tf.make_tensor_proto(array)
    self._spec = tf.TensorSpec(tf.TensorShape(proto.tensor_shape), proto.dtype)
    descriptor = os.memfd_create('public_examples')
    with open(descriptor, 'wb', closefd=False) as file:
      file.write(proto.SerializeToString())
    # With the process's number, since TFF's own contexts run graphs in another process.
    self._path = f'/proc/{os.getpid()}/fd/{descriptor}'

  def read(self) -> tf.Tensor:
    """Returns the array, read anew whenever a graph runs."""
    tensor = tf.io.parse_tensor(tf.io.read_file(self._path), self._spec.dtype)
    return tf.ensure_shape(tensor, self._spec.shape)
