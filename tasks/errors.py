"""Defines the errors that a command prints in one sentence, without a traceback."""

from collections.abc import Iterable, Iterator
import contextlib
from typing import Any


class InputError(Exception):
  """A flag, a value or a file that the user can correct; the text states how."""


class RunError(Exception):
  """A run that has begun can't continue; the text states why, and how it can."""


def as_flags(error: ValueError, names: Iterable[str]) -> InputError:
  """The library's sentence, with flags where it names arguments."""
  text = str(error).rstrip('.')
  for name in names:
    text = text.replace(f'`{name}`', f'--{name}')
  return InputError(f'{text}.')


@contextlib.contextmanager
def writing_to(flag: str, directory: Any) -> Iterator[None]:
  """In this block, what can't be written in a flag's directory is an `InputError`."""
  try:
    yield
  except OSError as error:
    raise InputError(
        f'--{flag}={directory} can\'t be written ({error.strerror}); name a directory that'
        ' can.'
    ) from None
