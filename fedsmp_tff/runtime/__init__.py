"""Contexts that run a round: in this process or on a Ray cluster.

A name is imported when it is first used, so that this package loads neither TensorFlow nor TFF.
"""

import importlib
from typing import Any

_MODULES = {
    'local_context': 'local',
    'set_local_context': 'local',
    'CheckFailedError': 'map_reduce',
    'NoMapReduceFormError': 'map_reduce',
    'WorkersLostError': 'ray_cluster',
    'ray_context': 'ray_cluster',
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
  """Imports a public name when it is first used (PEP 562)."""
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.{_MODULES[name]}'), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
