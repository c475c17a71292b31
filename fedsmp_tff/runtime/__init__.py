"""Contexts that run a round: in this process or on a Ray cluster.

As in the package itself, a name is imported when it is first used: `processes` alone needs neither
TensorFlow nor TFF.
"""

import importlib
from typing import Any

# Each public name, once, under the module that defines it.
_NAMES = {
    'local': ('local_context', 'set_local_context'),
    'map_reduce': ('NoMapReduceFormError',),
    'ray_cluster': ('WorkersLostError', 'ray_context'),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
  """Imports a public name when it is first used (PEP 562)."""
  module = _MODULES.get(name)
  if module is None:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  globals()[name] = getattr(importlib.import_module(f'{__name__}.{module}'), name)
  return globals()[name]


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
