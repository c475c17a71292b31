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


def failed_check(error: Exception) -> Optional[str]:
  """Returns the sentence of a failed `tf.debugging` check; None if no check failed.

  TensorFlow puts the sentence after a traceback of the graph.
  """
  match = re.search(r'assertion failed: \[(.*?)\](?= \[|$)', str(error), re.DOTALL)
  return match and match.group(1)
