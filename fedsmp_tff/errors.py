"""Turns exceptions into one-line messages for users, and checks numbers."""

import numbers
import re
from typing import Any, Optional


def check_positive(name: str, value: Any) -> None:
  """Raises ValueError if an argument is not a positive integer, of Python or NumPy."""
  if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
    raise ValueError(f'`{name}` must be a positive integer. Found {value}.')


def reason(error: Exception) -> str:
  """Returns the first line of an error's text, without TensorFlow's node names."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  text = getattr(error, 'message', None) or str(error) or type(error).__name__
  return re.sub(r'^{{.*?}} ?| \[Op:.*\]$', '', text.splitlines()[0])


def after_check(condition: Any, sentence: str, tensor: Any) -> Any:
  """Returns a tensor that is computed only if `condition` holds, in eager mode and in graphs.

  XLA drops the check.

  Args:
    condition: bool scalar tensor.
    sentence: The sentence that `failed_check` finds in the error.
    tensor: The tensor.
  """
  import tensorflow as tf  # Accounting runs without it.

  check = tf.debugging.assert_equal(condition, True, sentence)
  # In TensorFlow functions the check runs by itself and `check` is None.
  with tf.control_dependencies([] if check is None else [check]):
    return tf.identity(tensor)


def failed_check(error: Exception) -> Optional[str]:
  """Returns the sentence of a failed `tf.debugging` check; None if no check failed.

  TensorFlow puts the sentence after a traceback of the graph.
  """
  match = re.search(r'assertion failed: \[(.*?)\](?= \[|$)', str(error), re.DOTALL)
  return match and match.group(1)
