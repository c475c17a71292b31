"""Checks that fail in a computation, with their sentence first."""

from collections.abc import Iterator
import contextlib
import re

import tensorflow as tf


@contextlib.contextmanager
def sentence_first() -> Iterator[None]:
  """Raises a failed `tf.debugging` check as an error whose text is that of the check.

  TensorFlow puts it behind a traceback of the graph.

  >>> with sentence_first():
  ...   text = 'Graph execution error: assertion failed: [Too few.] [x = ] [0]'
  ...   raise tf.errors.InvalidArgumentError(None, None, text)
  Traceback (most recent call last):
    ...
  tensorflow.python.framework.errors_impl.InvalidArgumentError: Too few.

  Raises:
    tf.errors.InvalidArgumentError: If a check fails; its cause is the error as it was.
  """
  try:
    yield
  except tf.errors.InvalidArgumentError as error:
    found = re.search(r'assertion failed: \[(.*?)\](?= \[|$)', str(error), re.DOTALL)
    if found is None:
      raise
    raise tf.errors.InvalidArgumentError(None, None, found.group(1)) from error
