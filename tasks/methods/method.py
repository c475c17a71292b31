"""Defines a method: a training method, as --algorithm names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, Optional

import fedsmp_tff
from tasks.datasets import task as task_lib


@dataclasses.dataclass(frozen=True)
class Method:
  """A training method: all facts that commands use.

  Attributes:
    name: Value of --algorithm, unless the value is a module.
    title: Short title, for tables and figures.
    mask: The plan's phrase on the selected coordinates, such as 'random coordinates'.
    sparsifier: Makes the sparsifier of (a run's settings, its data).
    private: Whether clients clip and add noise, so that flags of privacy have an effect.
    masked: Whether --p and --mask_rounds have an effect.
    needs_public: Whether it needs public examples.
    fixed: The flags that it fixes, by name.
    options: A dataclass of its own flags (`tasks.cli.options`); None: it has none.
  """

  name: str
  title: str
  mask: str
  sparsifier: Callable[[Any, task_lib.TaskData], fedsmp_tff.Sparsifier]
  private: bool = True
  masked: bool = True
  needs_public: bool = False
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  options: Optional[type] = None
