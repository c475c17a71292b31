"""The tasks' own flags: parsed with a command's, handed to the tasks by `use`.

A task's module defines its flags, whose names begin with the task's, on absl's global
`flags.FLAGS`, and reads them there. No command line is parsed into those: `define` copies them
to flags that are, so that reading a command line changes nothing for the tasks.
"""

from collections.abc import Mapping
import copy
from typing import Any

from absl import flags

from tasks import datasets
from tasks import errors


def names(task: str) -> list[str]:
  """The names of a task's own flags, sorted."""
  prefix = f'{datasets.TASKS[task].name}_'
  return sorted(name for name in flags.FLAGS if name.startswith(prefix))


def define(made: flags.FlagValues) -> None:
  """Adds the flags of every task to others, at their defaults."""
  for task in datasets.TASKS:
    for name in names(task):
      flag = copy.deepcopy(flags.FLAGS[name])
      flag.unparse()
      made[name] = flag


def of_task(task: str, parsed: flags.FlagValues) -> dict[str, Any]:
  """The values of a task's own flags, by name.

  Raises:
    InputError: If a flag of another task is set.
  """
  for other in datasets.TASKS:
    for name in names(other):
      if other != task and parsed[name].present:
        raise errors.InputError(
            f'--{name} has no effect unless --task={other}; drop it for --task={task}.'
        )
  return {name: parsed[name].value for name in names(task)}


def use(values: Mapping[str, Any]) -> None:
  """Sets flags of tasks, for the functions of `Task` that are called from now on."""
  flags.FLAGS.mark_as_parsed()
  for name, value in values.items():
    setattr(flags.FLAGS, name, value)
