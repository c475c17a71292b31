"""Plug-ins: a flag names a built-in value, or a module on the Python path that has one."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import pkgutil
from typing import Any, TypeVar

from absl import flags

from tasks import errors

_T = TypeVar('_T')
_IMPORT_ERRORS = (ImportError, AttributeError, TypeError, ValueError)


def find(flag: str, name: str, known: dict[str, _T], attribute: str, kind: type[_T]) -> _T:
  """Returns the plug-in that a flag names: a known one, or the `attribute` of an importable module.

  A module is imported only because a flag names it, and added to `known`. A look-up never imports:
  the names that files record are of whoever wrote the files.

  Raises:
    InputError: If the module does not exist or has no plug-in of this kind.
  """
  if name not in known:
    try:
      plugin = pkgutil.resolve_name(f'{name}:{attribute}')
      if not isinstance(plugin, kind):
        raise TypeError(f'its {attribute} is not a {kind.__module__}.{kind.__name__}')
    except _IMPORT_ERRORS as error:
      is_name = all(part.isidentifier() for part in name.split('.'))
      raise errors.InputError(
          f'--{flag}={name} is neither one of {", ".join(known)} nor an importable module with'
          f' {attribute}{f" ({error})" if is_name else ""}.{errors.did_you_mean(name, known)}'
          ' Correct it; docs/extending.md has an example.'
      ) from None
    known[name] = plugin
  return known[name]


def title(name: str, known: Mapping[str, Any]) -> str:
  """Returns the title of a plug-in; of one that no flag of this command named, the name."""
  return known[name].title if name in known else name


def call(flag: str, name: str, kind: type[_T]) -> _T:
  """Returns the result of the function MODULE:FUNCTION that a flag names.

  Raises:
    InputError: If the function cannot be imported, or its result is not of type `kind`.
  """
  try:
    make: Any = pkgutil.resolve_name(name)
    if not callable(make):
      raise TypeError('it is not a function')
  except _IMPORT_ERRORS as error:
    raise errors.InputError(
        f"--{flag}={name} can't be imported ({error}). Use MODULE:FUNCTION, with MODULE on the"
        ' Python path.'
    ) from None
  result = make()
  if not isinstance(result, kind):
    raise errors.InputError(
        f'--{flag}={name} returned {type(result).__name__}, which is not a {kind.__name__}.'
        ' Return one.'
    )
  return result


def load_chosen(
    arguments: Sequence[str], flag_values: flags.FlagValues, finders: Mapping[str, Callable]
) -> list[str]:
  """Imports the modules that flags name, each by its finder; returns the flags' values."""
  chosen = []
  # Who parses all flags reports the errors.
  with contextlib.suppress(flags.Error, ValueError):
    flag_values(['', *arguments], known_only=True)
    for name, find_plugin in finders.items():
      if (value := flag_values[name].value) is not None:
        find_plugin(value)
        chosen.append(value)
  return chosen
