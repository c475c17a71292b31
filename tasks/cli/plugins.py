"""Plug-ins: a flag's value is a name of ours, or a module on the Python path that has the thing."""

from collections.abc import Iterable, Iterator, Mapping
import importlib
from typing import Any, TypeVar

from tasks import errors

_T = TypeVar('_T')


class Registry(Mapping[str, _T]):
  """Maps the values of a flag to plug-ins: ours by name, others by their module.

  Iteration is over the names of ours, and of the modules that were looked up.
  """

  def __init__(self, flag: str, attribute: str, plugins: Iterable[_T]):
    """Initializes.

    Args:
      flag: The flag's name.
      attribute: What a module calls its plug-in, such as 'TASK'.
      plugins: Ours; each has a `name`.
    """
    self._flag = flag
    self._attribute = attribute
    self._plugins = {plugin.name: plugin for plugin in plugins}
    self._kind = type(next(iter(self._plugins.values())))
    self._ours = tuple(self._plugins)

  @property
  def names(self) -> tuple[str, ...]:
    """The names of ours."""
    return self._ours

  def __getitem__(self, name: str) -> _T:
    """Returns the plug-in of a name; imports its module if it is none of ours.

    Raises:
      InputError: If there is no such module, or it has no plug-in.
    """
    if name not in self._plugins:
      try:
        plugin = getattr(importlib.import_module(name), self._attribute)
        if not isinstance(plugin, self._kind):
          raise TypeError(f'its {self._attribute} is no {self._kind.__module__}.{self._kind.__name__}')
      except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise errors.InputError(
            f'--{self._flag}={name} is neither one of {", ".join(self._ours)} nor an importable'
            f' module with {self._attribute} ({error}); docs/extending.md has an example.'
        ) from None
      self._plugins[name] = plugin
    return self._plugins[name]

  def __contains__(self, name: object) -> bool:
    return name in self._plugins

  def __iter__(self) -> Iterator[str]:
    return iter(self._plugins)

  def __len__(self) -> int:
    return len(self._plugins)


def call(flag: str, name: str, kind: type[_T]) -> _T:
  """Returns what the function MODULE:FUNCTION that a flag names returns.

  Args:
    flag: The flag's name.
    name: Its value.
    kind: The type that the function must return.

  Raises:
    InputError: If the function can't be imported, or returns something else.
  """
  module, _, function = name.partition(':')
  try:
    make: Any = getattr(importlib.import_module(module), function)
  except (ImportError, AttributeError, ValueError) as error:
    raise errors.InputError(
        f'--{flag}={name} can\'t be imported ({error}); name MODULE:FUNCTION, with MODULE on the'
        ' Python path.'
    ) from None
  made = make()
  if not isinstance(made, kind):
    raise errors.InputError(
        f'--{flag}={name} returned {type(made).__name__}, which is no {kind.__name__}; return one.'
    )
  return made
