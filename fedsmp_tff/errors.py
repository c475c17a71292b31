"""Turns exceptions into one-line messages for users."""

import re
from typing import Optional


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
