"""Grids: files that list runs, a command line of flags each, in the order to run them.

A grid is text. `#` begins a comment, `all:` a line of flags that every run has; each other line
is one run, or several: `--p={0.1,0.2}` stands for both, as in a shell, and several braces for
every combination. A --flagfile is relative to the grid's directory, or built-in. Blank lines
separate paragraphs: with several seeds, a paragraph is run with all of them, seed by seed, before the next
paragraph begins. A comment after a run is its title: figures of the grids `ablation/TASK` show it.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import hashlib
import itertools
import pathlib
import re
import shlex
from typing import Any, Optional

from tasks import errors
from tasks.cli import experiment_files
from tasks.training import settings as settings_lib

_ALL = 'all'
_UNSAFE = re.compile(r'[^A-Za-z0-9_.,=+-]')
_MAX_NAME = 160
_FLAGFILE = '--flagfile'
_FIRST = (_FLAGFILE, '--task', '--algorithm')


@dataclasses.dataclass(frozen=True)
class Cell:
  """One run of a grid.

  Attributes:
    flags: Its flags, as tasks.run takes them, each once.
    title: A short description; '' for none.
  """

  flags: tuple[str, ...]
  title: str = dataclasses.field(default='', compare=False)

  @classmethod
  def of(cls, flags: Iterable[str], title: str = '') -> 'Cell':
    """Returns a run with these flags; a later flag replaces an earlier one of its name."""
    return cls(tuple({flag.partition('=')[0]: flag for flag in flags}.values()), title)

  @property
  def name(self) -> str:
    """A directory name, one for each set of flags of a grid whatever their order.

    Flags that may change when a run resumes, such as --data_dir, are left out.
    """
    values = {name: value for name, _, value in (flag.partition('=') for flag in self.flags)}
    if _FLAGFILE in values:
      values[_FLAGFILE] = pathlib.Path(values[_FLAGFILE]).stem
    first = [values.pop(name) for name in _FIRST if name in values]
    rest = sorted(
        flag.lstrip('-') for flag in self.flags
        if (name := flag.partition('=')[0]) in values
        and name.lstrip('-') not in settings_lib.MAY_CHANGE
    )
    name = _UNSAFE.sub('_', '-'.join([*first, *rest]))
    if len(name) > _MAX_NAME:  # File systems take 255 bytes.
      digest = hashlib.blake2b(name.encode(), digest_size=6).hexdigest()
      name = f'{name[:_MAX_NAME]}-{digest}'
    return name

  @functools.cached_property
  def settings(self) -> settings_lib.RunSettings:
    """The settings that the flags make; raises `InputError` if a flag is wrong."""
    settings, runtime_flags = settings_lib.parse(self.flags)
    for name in ('dry_run', 'output_dir', 'overwrite'):
      if getattr(runtime_flags, name):
        raise errors.InputError(
            f'--{name} is not a flag of a grid: its runs write results to directories of their own,'
            ' once. Remove the flag; `tasks.sweep --print` lists commands to run by hand.'
        )
    return settings

  @functools.cached_property
  def identity(self) -> dict[str, Any]:
    """The `flags` in the config.json of a run; for errors see `settings`."""
    return settings_lib.identity(self.settings)


def names() -> list[str]:
  """Returns the names of the built-in grids."""
  return experiment_files.names(experiment_files.GRID)


def read(grid: str) -> list[list[Cell]]:
  """Returns the paragraphs of a grid.

  Args:
    grid: One of `names`, or a file.

  Raises:
    InputError: If there is no such grid, or a line is not a list of flags.
  """
  path = experiment_files.locate(grid, experiment_files.GRID)
  try:
    lines = path.read_text(encoding='utf-8').splitlines()
  except (OSError, UnicodeDecodeError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise experiment_files.unreadable('grid', grid, experiment_files.GRID, reason) from None
  common, paragraphs, seen = [], [[]], {}
  for number, line in enumerate(lines, 1):
    if not line.strip():
      paragraphs.append([])
    is_common = line.strip().startswith(f'{_ALL}:')
    text = line.strip().removeprefix(f'{_ALL}:')
    try:
      flags = shlex.split(text, comments=True)
      for flag in flags:
        if not flag.startswith('--'):
          raise ValueError(f'{flag!r} is not a flag. Flags start with --')
    except ValueError as error:
      raise errors.InputError(f'{path}, line {number}: {error}.') from None
    if is_common:
      common = flags
    elif flags:
      title = text.partition(' #')[2].strip()
      for chosen in itertools.product(*map(choices, (*common, *flags))):
        cell = Cell.of((_absolute(flag, path.parent) for flag in chosen), title)
        if cell.name not in seen:
          seen[cell.name] = cell
          paragraphs[-1].append(cell)
        elif set(cell.flags) != set(seen[cell.name].flags):
          raise errors.InputError(
              f'{path}, line {number}: two runs would share the directory {cell.name}, whose name'
              ' has only the file name of --flagfile, and no flag such as --workers. Give them'
              ' different values of another flag.'
          )
  paragraphs = [paragraph for paragraph in paragraphs if paragraph]
  if not paragraphs:
    raise errors.InputError(f'--grid={path} lists no run. Add a line of flags.')
  return paragraphs


def with_seeds(
    paragraphs: Iterable[Sequence[Cell]], seeds: Sequence[Optional[int]]
) -> list[Cell]:
  """Returns all cells in the order to run them, with each seed; a cell that has a seed keeps it.

  The seed None leaves a cell as it is.
  """
  cells = (
      cell if seed is None or any(flag.startswith('--seed=') for flag in cell.flags)
      else Cell.of((*cell.flags, f'--seed={seed}'))
      for paragraph in paragraphs
      for seed in seeds
      for cell in paragraph
  )
  return list({cell.name: cell for cell in cells}.values())


def _absolute(flag: str, directory: pathlib.Path) -> str:
  """Returns a flag; a --flagfile, relative to a directory, with its absolute path."""
  name, _, value = flag.partition('=')
  if name != _FLAGFILE:
    return flag
  return f'{name}={experiment_files.locate(value, experiment_files.FLAGS, directory).resolve()}'


def choices(flag: str) -> list[str]:
  """Returns a flag with every choice of its braces."""
  parts = re.split(r'\{([^{}]*)\}', flag)  # Every second part was in braces.
  return [
      ''.join(chosen)
      for chosen in itertools.product(
          *(part.split(',') if i % 2 else [part] for i, part in enumerate(parts))
      )
  ]
