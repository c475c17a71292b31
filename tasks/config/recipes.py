"""Recipes: named sets of tuned flags for a task, as files."""

import pathlib

from tasks import errors

_DIRECTORY = pathlib.Path(__file__).parents[1] / 'experiments' / 'recipes'


def file_of(task: str, name: str) -> pathlib.Path:
  """The file of a recipe's flags, one a line.

  Raises:
    InputError: If the task has no recipe of that name.
  """
  path = _DIRECTORY / task / f'{name}.flags'
  known = sorted(file.stem for file in path.parent.glob('*.flags'))
  if name not in known:
    remedy = f'choose {" or ".join(known)}' if known else 'it has none: drop the flag'
    raise errors.InputError(f'--recipe={name} is not a recipe of --task={task}; {remedy}.')
  return path
