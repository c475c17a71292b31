"""Grids: files that list runs, a command line of flags each, in the order to run them.

A grid is text. `#` begins a comment, `all:` a line of flags that every run has; each other line
is one run, or several: `--p={0.1,0.2}` stands for both, as in a shell, and several braces for
every combination. A --flagfile is relative to the grid's directory. Blank lines part it into paragraphs: with several seeds, all of them are
run of one paragraph, seed by seed, before the next begins. A comment after a run is its title:
figures of the grids `ablation/TASK` show it.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import hashlib
import pathlib
import re
import shlex
from typing import Any

from tasks import errors
from tasks.cli import settings as settings_lib

_ROOT = pathlib.Path(__file__).parents[1] / 'experiments'
_SUFFIX = '.grid'
_EVERY = 'all'
_UNSAFE = re.compile(r'[^A-Za-z0-9_.,=+-]')
_LONGEST_NAME = 160
_FLAGFILE = '--flagfile'
_FIRST = (_FLAGFILE, '--task', '--algorithm')


@dataclasses.dataclass(frozen=True)
class Cell:
  """One run of a grid.

  Attributes:
    flags: Its flags, as tasks.run takes them, each once.
    title: A few words on it; '' for none.
  """

  flags: tuple[str, ...]
  title: str = dataclasses.field(default='', compare=False)

  @classmethod
  def of(cls, flags: Iterable[str], title: str = '') -> 'Cell':
    """A run with these flags, of which a later one takes the place of an earlier one."""
    return cls(tuple({flag.partition('=')[0]: flag for flag in flags}.values()), title)

  @property
  def name(self) -> str:
    """A directory's name, one for each set of flags whatever their order.

    As in a run's identity, where the data are is left out.
    """
    first, rest = [], []
    for flag in self.flags:
      name, _, value = flag.partition('=')
      if name == _FLAGFILE:
        value = pathlib.Path(value).stem
      if name in _FIRST:
        first.append((_FIRST.index(name), value))
      elif not name.endswith('_dir'):
        rest.append(flag.lstrip('-'))
    parts = [value for _, value in sorted(first)] + sorted(rest)
    name = _UNSAFE.sub('_', '-'.join(parts))
    if len(name) > _LONGEST_NAME:  # File systems take 255 bytes.
      digest = hashlib.blake2b(name.encode(), digest_size=6).hexdigest()
      name = f'{name[:_LONGEST_NAME]}-{digest}'
    return name

  @functools.cached_property
  def settings(self) -> settings_lib.RunSettings:
    """The settings that the flags make.

    Raises:
      InputError: If one has no effect or is out of range.
    """
    return settings_lib.parse(self.flags)[0]

  @functools.cached_property
  def identity(self) -> dict[str, Any]:
    """The `flags` in the config.json of a run; raises as `settings`."""
    return settings_lib.identity(self.settings)


def names() -> list[str]:
  """The grids that are here."""
  found = sorted(_ROOT.rglob(f'*{_SUFFIX}'))
  return [str(path.relative_to(_ROOT).with_suffix('')) for path in found]


def read(grid: str) -> list[list[Cell]]:
  """The paragraphs of a grid.

  Args:
    grid: One of `names`; a file; or DIRECTORY/all for all that are here in one, where the
      first paragraphs come first.

  Raises:
    InputError: If there is none, or a line is no list of flags.
  """
  directory, _, last = grid.rpartition('/')
  if last == _EVERY:
    members = [name for name in names() if name.rpartition('/')[0] == directory]
    if members:
      grids = [_parse(_ROOT / f'{name}{_SUFFIX}') for name in members]
      most = max(map(len, grids))
      return [
          _unique(cell for one in grids if i < len(one) for cell in one[i])
          for i in range(most)
      ]
  path = _ROOT / f'{grid}{_SUFFIX}'
  return _parse(path if path.is_file() else pathlib.Path(grid))


def with_seeds(
    paragraphs: Iterable[Sequence[Cell]], seeds: Sequence[int]
) -> list[Cell]:
  """All cells in the order to run them, with each seed; a cell that has one keeps it."""
  return _unique(
      cell if any(flag.startswith('--seed=') for flag in cell.flags)
      else Cell.of((*cell.flags, f'--seed={seed}'))
      for paragraph in paragraphs
      for seed in seeds
      for cell in paragraph
  )


def _parse(path: pathlib.Path) -> list[list[Cell]]:
  try:
    lines = path.read_text(encoding='utf-8').splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise errors.InputError(
        f'--grid={path} can\'t be read ({getattr(error, "strerror", None) or error}); name a'
        f' grid file, or one of {", ".join(names())}.'
    ) from None
  common, paragraphs, seen = [], [[]], set()
  for number, line in enumerate(lines, 1):
    line = line.strip()
    if not line:
      paragraphs.append([])
    if not line or line.startswith('#'):
      continue
    begins = line.startswith(f'{_EVERY}:')
    try:
      flags = shlex.split(line.removeprefix(f'{_EVERY}:') if begins else line, comments=True)
    except ValueError as error:
      raise errors.InputError(f'{path}, line {number}: {error}.') from None
    for flag in flags:
      if not flag.startswith('--'):
        raise errors.InputError(
            f'{path}, line {number}: {flag!r} is not a flag; flags start with --.'
        )
    flags = [_from_directory(flag, path.parent) for flag in flags]
    if begins:
      common = flags
      continue
    title = line.partition(' #')[2].strip()
    for cell in (Cell.of(chosen, title) for chosen in _combinations((*common, *flags))):
      if cell.name not in seen:
        seen.add(cell.name)
        paragraphs[-1].append(cell)
  paragraphs = [paragraph for paragraph in paragraphs if paragraph]
  if not paragraphs:
    raise errors.InputError(f'--grid={path} lists no run; add a line of flags.')
  return paragraphs


def _from_directory(flag: str, directory: pathlib.Path) -> str:
  """Returns a flag whose --flagfile, relative to a directory, is an absolute path."""
  name, _, value = flag.partition('=')
  return f'{name}={(directory / value).resolve()}' if name == _FLAGFILE else flag


def _combinations(flags: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
  """Flags with every choice of what stands in braces."""
  for i, flag in enumerate(flags):
    braces = re.search(r'\{([^{}]*)\}', flag)
    if braces:
      for choice in braces[1].split(','):
        chosen = flag[: braces.start()] + choice + flag[braces.end() :]
        yield from _combinations((*flags[:i], chosen, *flags[i + 1 :]))
      return
  yield flags


def _unique(cells: Iterable[Cell]) -> list[Cell]:
  return list({cell.name: cell for cell in cells}.values())
