"""Plug-ins: a flag names a built-in value, or a module on the Python path that has one."""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import pkgutil
from typing import Any, Optional, TypeVar

from absl import flags

from tasks import errors

_T = TypeVar('_T')
_IMPORT_ERRORS = (ImportError, AttributeError, TypeError, ValueError)


class Registry(dict[str, _T]):
  """Maps the values of a flag to plug-ins: built-in ones by name, others by their module.

  Only `load` imports a module, for the flag that names it; the module is an item from then on. A
  look-up never imports: the names that files record are of whoever wrote the files.

  Attributes:
    names: The names of the built-in plug-ins.
  """

  def __init__(
      self, flag: str, attribute: str, plugins: Iterable[_T], kind: Optional[type[_T]] = None
  ):
    """Initializes.

    Args:
      flag: The flag's name.
      attribute: The name of the plug-in in its module, such as 'TASK'.
      plugins: The built-in plug-ins; each has a `name`.
      kind: Class of all plug-ins; None: the class of the first built-in plug-in.
    """
    super().__init__({plugin.name: plugin for plugin in plugins})
    self.names = tuple(self)
    self._flag, self._attribute = flag, attribute
    self._kind = kind or type(next(iter(self.values())))

  def load(self, name: str) -> _T:
    """Returns the plug-in that a flag names; imports its module if it is not an item.

    Raises:
      InputError: If the module does not exist or has no plug-in.
    """
    if name in self:
      return self[name]
    try:
      plugin = pkgutil.resolve_name(f'{name}:{self._attribute}')
      if not isinstance(plugin, self._kind):
        raise TypeError(
            f'its {self._attribute} is not a {self._kind.__module__}.{self._kind.__name__}'
        )
    except _IMPORT_ERRORS as error:
      raise errors.InputError(
          f'--{self._flag}={name} is neither one of {", ".join(self.names)} nor an importable'
          f' module with {self._attribute} ({error}). Correct it; docs/extending.md has an example.'
          f'{errors.did_you_mean(name, self.names)}'
      ) from None
    self[name] = plugin
    return plugin

  def title(self, name: str) -> str:
    """Returns the title of a plug-in; of one that no flag of this command named, the name."""
    return self[name].title if name in self else name


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
    arguments: Sequence[str], flag_values: flags.FlagValues, registries: Mapping[str, Registry]
) -> list[str]:
  """Imports the modules that flags name, each of its registry; returns the flags' values."""
  chosen = []
  # Who parses all flags reports the errors.
  with contextlib.suppress(flags.Error, ValueError):
    flag_values(['', *arguments], known_only=True)
    for name, registry in registries.items():
      if (value := flag_values[name].value) is not None:
        registry.load(value)
        chosen.append(value)
  return chosen
