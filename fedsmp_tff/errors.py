"""One-line messages for people about exceptions."""

import re


def reason(error: Exception) -> str:
  """The first line of an error's text, without TensorFlow's names of nodes."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  text = getattr(error, 'message', None) or str(error) or type(error).__name__
  return re.sub(r'^{{.*?}} ?| \[Op:.*\]$', '', text.splitlines()[0])
