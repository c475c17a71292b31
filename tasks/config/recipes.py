"""Recipes: named sets of tuned flags for a task, as files.

A file's flags before the first --algorithm are for every system, those after an --algorithm for that
system alone. Without an explicit --algorithm the first in the file runs, or, if an explicit flag has
no effect on it, the default of --algorithm.
"""

from collections.abc import Iterable
import pathlib
from typing import Optional

from tasks import errors

_DIRECTORY = pathlib.Path(__file__).parents[1] / 'experiments' / 'recipes'
_ALGORITHM, _TIME = '--algorithm=', '# Time: '
# What tasks.run takes where no preset is named and the task has such a recipe; and the name of none.
BEST, PAPER, NONE = 'best', 'paper', 'none'


def file_of(task: str, name: str) -> pathlib.Path:
  """The file of a recipe's flags, one a line.

  Raises:
    InputError: If the task has no recipe of that name.
  """
  known = names(task)
  if name not in known:
    remedy = f'choose {", ".join(known)} or {NONE}' if known else 'it has none: drop the flag'
    raise errors.InputError(f'--recipe={name} is not a recipe of --task={task}; {remedy}.')
  return _DIRECTORY / task / f'{name}.flags'


def names(task: str) -> list[str]:
  """The recipes of a task."""
  return sorted(file.stem for file in (_DIRECTORY / task).glob('*.flags'))


def flags_of(task: str, name: str) -> list[str]:
  """The flags of a recipe for the system that runs where none is named."""
  lines = file_of(task, name).read_text(encoding='utf-8').splitlines()
  return of_algorithm([line for line in lines if line.startswith('--')], None)


def time_of(task: str, name: str) -> Optional[str]:
  """Returns how long a recipe takes and on what, as its file states; None: not measured."""
  lines = file_of(task, name).read_text(encoding='utf-8').splitlines()
  times = [line.removeprefix(_TIME).rstrip('.') for line in lines if line.startswith(_TIME)]
  return times[0] if times else None


def of_algorithm(lines: Iterable[str], algorithm: Optional[str]) -> list[str]:
  """The flags of a recipe that are for a system.

  For example:

  >>> lines = ['--epsilon=8', '--algorithm=fedsmp_topk', '--p=0.01', '--algorithm=dp_fedavg']
  >>> of_algorithm(lines, None)
  ['--epsilon=8', '--algorithm=fedsmp_topk', '--p=0.01']
  >>> of_algorithm(lines, 'fedavg')
  ['--epsilon=8']

  Args:
    lines: All flags of the recipe.
    algorithm: The system; None: the first that the recipe names.
  """
  found, of = [], None
  for line in lines:
    if line.startswith(_ALGORITHM):
      of = line.removeprefix(_ALGORITHM)
      algorithm = algorithm or of
    if of in (None, algorithm):
      found.append(line)
  return found
