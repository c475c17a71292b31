"""Finds grids and files of flags: the user's own, or else those of `tasks/experiments` by name."""

import os
import pathlib

from tasks import errors

GRID, FLAGS = '.grid', '.flags'
_ROOT = pathlib.Path(__file__).parents[1] / 'experiments'
# Where they are in a clone.
_IN_CLONE = 'tasks/experiments/'


def names(suffix: str) -> list[str]:
  """Returns the names of the built-in files of a kind, such as 'paper/svhn'."""
  return [_name(str(path.relative_to(_ROOT)), suffix) for path in sorted(_ROOT.rglob(f'*{suffix}'))]


def locate(text: str, suffix: str, directory: pathlib.Path = pathlib.Path()) -> pathlib.Path:
  """Returns the file that a text names, which need not exist; '~' is the home directory.

  Args:
    text: A file, relative to `directory`; or a built-in file's name, or its path in a clone.
    suffix: The kind of the built-in file.
    directory: The directory.
  """
  own, name = directory / os.path.expanduser(text), _name(text, suffix)
  is_own = os.path.isfile(own) or name not in names(suffix)
  return own if is_own else _ROOT / f'{name}{suffix}'


def unreadable(flag: str, text: str, suffix: str, reason: str) -> errors.InputError:
  """Returns the error of a flag whose file can't be read."""
  built_in = names(suffix)
  return errors.InputError(
      f"--{flag}={text} can't be read ({reason}). Use a file of your own, or one of"
      f' {", ".join(built_in)}.{errors.did_you_mean(_name(text, suffix), built_in)}'
  )


def _name(text: str, suffix: str) -> str:
  return text.removeprefix(_IN_CLONE).removesuffix(suffix)
