"""The frame of every command: its help, its flags, its errors and its exit status."""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import os
import sys
from typing import Any, NoReturn, Optional

from absl import flags
from absl import logging

from tasks import errors
from tasks.cli import options

_FULL_HELP = frozenset(['--helpfull', '-helpfull'])
_HELP = frozenset(['--help', '-h', '-help', '--helpshort']) | _FULL_HELP
# Begins the names of the modules that TensorFlow's AutoGraph writes, one a function.
_GENERATED = '__autograph_generated_file'


def read(made: flags.FlagValues, arguments: Sequence[str], program: str) -> list[str]:
  """Parses a command line into flags; returns the arguments that are no flags.

  Args:
    made: New flags.
    arguments: The command line, without its command.
    program: The command that prints help.

  Raises:
    InputError: If a flag is unknown, or a value not one of its type.
  """
  try:
    return made([program, *arguments])[1:]
  except (flags.Error, ValueError) as error:  # ValueError: a value for --noFLAG.
    text = str(error).removeprefix('ERROR:: ')
    raise errors.InputError(
        f'{text}{_flagfile_of(error, made, arguments)} (see {program} --help)'
    ) from None


def refuse(rest: Sequence[str], program: str) -> None:
  """Raises `InputError` if there are arguments that are no flags."""
  if rest:
    raise errors.InputError(
        f'{rest[0]!r} is not a flag; flags start with -- (see {program} --help).'
    )


def parse(arguments: Sequence[str], *tables: type, program: str) -> list[Any]:
  """Parses a command line; returns an instance of each dataclass of options.

  Args:
    arguments: The command line, without its command.
    *tables: The dataclasses.
    program: The command that prints help.

  Raises:
    InputError: If it has something that is not a flag, or a value that can't be used.
  """
  made = options.new_flags(*tables)
  refuse(read(made, arguments, program), program)
  return [options.make(table, made) for table in tables]


def parse_with_arguments(arguments: Sequence[str], *tables: type, program: str) -> list[Any]:
  """As `parse`; returns the list of arguments that are no flags too, as the last."""
  made = options.new_flags(*tables)
  rest = read(made, arguments, program)
  return [*(options.make(table, made) for table in tables), rest]


@dataclasses.dataclass(frozen=True)
class Command:
  """A command.

  Attributes:
    name: The module that runs it, such as 'tasks.run'.
    usage: The lines of its help that precede its flags.
    tables: The dataclasses of its own options.
    flag_help: Returns the lines of help on its flags, on all (--helpfull) or on the common ones
      (--help); None: on all of its tables, for both.
    parse: Parses a command line, as `parse` does; what it returns are the arguments of the
      function that `main` calls.
    failures: Returns the exceptions that mean exit status 1, or their attribute `status` if
      they have one; called when something fails, so that a page of help does not import them.
  """

  name: str
  usage: Sequence[str]
  tables: Sequence[type] = ()
  flag_help: Optional[Callable[[bool], Sequence[str]]] = None
  parse: Callable[..., Sequence[Any]] = parse
  failures: Callable[[], tuple[type[BaseException], ...]] = tuple

  @property
  def program(self) -> str:
    """The command line that starts it."""
    return f'python -m {self.name}'

  def help_text(self, full: bool) -> str:
    """Its usage, then flags with their meanings and defaults: all of them, or the common ones."""
    if self.flag_help is not None:
      lines = self.flag_help(full)
    else:
      lines = options.help_lines(options.new_flags(*self.tables), *self.tables)
    return '\n'.join([*self.usage, *lines])

  def main(self, argv: Sequence[str], run: Callable[..., Optional[int]]) -> int:
    """Parses a command line and calls a function; prints one sentence for what fails.

    Args:
      argv: The command line, with its command.
      run: The function; returns the exit status, None for 0.

    Returns:
      The exit status: 2 for what the user must correct.
    """
    logging.set_verbosity(logging.ERROR)
    try:
      if not _HELP.isdisjoint(argv[1:]):
        print(self.help_text(full=not _FULL_HELP.isdisjoint(argv[1:])))
        return 0
      return run(*self.parse(argv[1:], *self.tables, program=self.program)) or 0
    except BrokenPipeError:  # As by `| head`; what is still to be flushed goes nowhere.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      return 1
    except errors.InputError as error:
      status, text = 2, error
    except self.failures() as error:
      status, text = getattr(error, 'status', 1), error
    print(f'{self.name}: {text}', file=sys.stderr)
    return status


def remove_generated_files() -> None:
  """Removes the source files that AutoGraph wrote for this process into the temporary directory.

  It removes them itself only where Python runs the functions of `atexit`.
  """
  for name, module in [*sys.modules.items()]:
    if name.startswith(_GENERATED):
      for path in (module.__file__, module.__cached__):
        with contextlib.suppress(OSError):
          os.remove(path)


def end(status: int) -> NoReturn:
  """Ends the process with an exit status, for a command that may have run TFF.

  All is closed by then. Python would wait for clients of a round that was abandoned, and delete
  TFF's context after the modules that this needs, with a traceback.
  """
  sys.stdout.flush()
  sys.stderr.flush()
  remove_generated_files()
  os._exit(status)


def _flagfile_of(error: Exception, made: flags.FlagValues, arguments: Sequence[str]) -> str:
  """A sentence that names the --flagfile with an unknown flag; '' if there is none."""
  if isinstance(error, flags.UnrecognizedFlagError):
    for argument in arguments:
      if not argument.lstrip('-').startswith('flagfile='):
        continue
      lines = made.read_flags_from_files([argument])
      if any(line.lstrip('-').split('=')[0] == error.flagname for line in lines):
        path = argument.split('=', 1)[1]
        return f' It is in {path}; correct or remove it there'
  return ''
