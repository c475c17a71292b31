"""What a command says, in one sentence and without a traceback, when it can't go on."""

from collections.abc import Iterable


class InputError(Exception):
  """A flag, a value or a file that the user can mend; the text says how."""


class RunError(Exception):
  """A run that had begun can't go on; the text says why, and how it can."""


def as_flags(error: ValueError, names: Iterable[str]) -> InputError:
  """The library's sentence, with flags where it names arguments."""
  text = str(error).rstrip('.')
  for name in names:
    text = text.replace(f'`{name}`', f'--{name}')
  return InputError(f'{text}; change it.')
