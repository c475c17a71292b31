"""Errors that users can correct, and checks of numbers and of the fields of files."""

from collections.abc import Collection, Mapping
import numbers
import re
from typing import Any, Optional

_MAX_CHARACTERS = 60
_MAX_MAGNITUDE = 2**63


class Error(Exception):
  """What a user can correct: the text says what is wrong, and what to do.

  Attributes:
    exit_status: The exit status of a command that it ends.
    argument: Name of the argument that is wrong, which a command says as its flag; None if none is.
  """

  exit_status: int = 1
  argument: Optional[str] = None


class ArgumentError(Error, ValueError):
  """An argument is out of range, or does not fit another one."""

  exit_status = 2

  def __init__(self, argument: str, rule: str):
    """Initializes; `rule` continues a sentence that begins with the argument's name."""
    super().__init__(argument, rule)
    self.argument, self.rule = argument, rule

  def __str__(self) -> str:
    return f'`{self.argument}` {self.rule}'


def check_value(holds: bool, name: str, rule: str, value: Any) -> None:
  """Raises `ArgumentError` unless a rule holds for an argument.

  Write the rule as comparisons that hold, such as `0 < x < 1`: for NaN they are all false.
  """
  if not holds:
    raise ArgumentError(name, f'must be {rule}. Found {value}.')


def check_positive(name: str, value: Any) -> None:
  """Raises `ArgumentError` if an argument is not a positive integer, of Python or NumPy."""
  is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  check_value(is_integer and value >= 1, name, 'a positive integer', value)


def convert_integers(options: Any, *names: str) -> None:
  """Makes fields of a frozen dataclass Python's integers, since JSON does not take NumPy's.

  Raises:
    ArgumentError: If a field is neither None nor a positive integer.
  """
  for name in names:
    if (value := getattr(options, name)) is not None:
      check_positive(name, value)
      object.__setattr__(options, name, int(value))


def check_fields(record: Any, kinds: Mapping[str, Collection[type]]) -> None:
  """Checks what somebody else's file says, before anything computes with it.

  Args:
    record: An object of a JSON file.
    kinds: The exact types of its fields by name: for JSON's readers True is no integer.

  Raises:
    ValueError: If it is no object, if a field is missing or of another type, or if a number is not
      finite or has a magnitude of 2^63 or more.
  """
  if not isinstance(record, dict):
    raise ValueError(f'it must be a JSON object. Found {printable(record)}')
  for name, types in kinds.items():
    value = record.get(name)
    # Written so that NaN, which compares false, is refused.
    is_number = isinstance(value, (int, float))
    if type(value) not in types or (is_number and not abs(value) < _MAX_MAGNITUDE):
      names = ' or '.join(kind.__name__ for kind in types)
      bound = ', below 2^63' if is_number else ''
      found = printable(repr(value), _MAX_CHARACTERS) if name in record else 'nothing'
      raise ValueError(f'`{name}` must be of type {names}{bound}. Found {found}')


def printable(text: Any, max_characters: Optional[int] = None) -> str:
  """Returns a text with escapes in place of characters that a terminal does not print.

  A file of somebody else's could otherwise color, move or forge what a command prints.
  """
  text = str(text)
  if max_characters is not None and len(text) > max_characters:
    text = f'{text[:max_characters]}...'
  return ''.join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def describe_array(array: Any) -> str:
  """Returns the type and the shape of an array, such as `float32[3, 4]`."""
  return f'{array.dtype}{[*array.shape]}'


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
