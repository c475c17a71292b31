"""The frame of every command: its help, its flags, its errors and its exit status."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import os
import sys
from typing import Any, NoReturn, Optional, TextIO

from absl import flags
from absl import logging

from fedsmp_tff import errors as library_errors
from tasks import errors
from tasks.cli import options

_FULL_HELP = '--helpfull'
_HELP = frozenset(['--help', '-h', _FULL_HELP])
# AutoGraph of TensorFlow writes one module per function; their names begin with this.
_GENERATED = '__autograph_generated_file'


def read(flag_values: flags.FlagValues, arguments: Sequence[str], program: str) -> list[str]:
  """Parses a command line into new flags; returns the other arguments.

  Raises:
    InputError: If a flag is unknown, or a value is not of its type.
  """
  try:
    return flag_values([program, *arguments])[1:]
  except flags.UnrecognizedFlagError as error:
    guess = errors.did_you_mean(error.flagname, flag_values).replace('mean ', 'mean --')
    raise errors.InputError(
        f'--{error.flagname} is not a flag.{guess} (see {program} --help)'
    ) from None
  except (flags.Error, ValueError) as error:  # ValueError: a value for --noFLAG.
    text = str(error).removeprefix('ERROR:: ')
    raise errors.InputError(f'{text} (see {program} --help)') from None


def refuse(rest: Sequence[str], program: str) -> None:
  """Raises `InputError` if there are arguments that are not flags."""
  if rest:
    raise errors.InputError(
        f'{rest[0]!r} is not a flag. Flags start with -- (see {program} --help).'
    )


def parse_with_arguments(arguments: Sequence[str], *tables: type, program: str) -> list[Any]:
  """Parses a command line; returns an instance of each table, then the list of other arguments.

  Args:
    arguments: The command line, without its command.
    *tables: Dataclasses of options.
    program: The command that prints help.

  Raises:
    InputError: If a flag is unknown, or its value is wrong.
  """
  flag_values = options.new_flags(*tables)
  rest = read(flag_values, arguments, program)
  # Arguments that are not flags are paths, or flags of other commands.
  rest = [*map(os.path.expanduser, rest)]
  return [*(options.make(table, flag_values) for table in tables), rest]


def parse(arguments: Sequence[str], *tables: type, program: str) -> list[Any]:
  """Parses a command line as `parse_with_arguments` does, and refuses other arguments."""
  *instances, rest = parse_with_arguments(arguments, *tables, program=program)
  refuse(rest, program)
  return instances


@dataclasses.dataclass(frozen=True)
class Command:
  """A command.

  Attributes:
    name: The module that runs it, such as 'tasks.run'.
    usage: The lines of its help that precede its flags.
    run: Function of what `parse` returns; it returns the exit status, None for 0.
    tables: The dataclasses of its own options.
    new_flags: Returns the flags for its help, from `tables`.
    parse: Parses a command line, as the function `parse` does.
  """

  name: str
  usage: Sequence[str]
  run: Callable[..., Optional[int]]
  tables: Sequence[type] = ()
  new_flags: Callable[..., flags.FlagValues] = options.new_flags
  parse: Callable[..., Sequence[Any]] = parse

  def main(self, argv: Sequence[str]) -> int:
    """Runs a command line, which starts with the command; prints one line for an error.

    Returns:
      The exit status; 2 if the user must correct something.
    """
    logging.set_verbosity(logging.ERROR)
    _open_closed_streams()
    said_to = sys.stderr
    try:
      if not _HELP.isdisjoint(argv[1:]):
        text = options.help_text(self.new_flags(*self.tables), full=_FULL_HELP in argv)
        print(*self.usage, text, sep='\n', flush=True)
        return 0
      program = f'python -m {self.name}'
      status = self.run(*self.parse(argv[1:], *self.tables, program=program)) or 0
      sys.stdout.flush()
      return status
    except (library_errors.Error, errors.Interrupted) as error:
      status, text = error.exit_status, error
      if error.argument is not None:
        is_flag = error.argument in self.new_flags(*self.tables)
        text = f'{"--" * is_flag}{error.argument} {error.rule}'
    except OSError as error:
      streams = (sys.stdout, sys.stderr)
      if (failing := next((s for s in streams if not _takes_text(s)), None)) is None:
        raise
      said_to = sys.stdout if failing is sys.stderr else sys.stderr
      os.dup2(os.open(os.devnull, os.O_WRONLY), failing.fileno())  # Discard the rest.
      if isinstance(error, BrokenPipeError):  # The reader ended, as in `| head`.
        return 1
      name = failing.name.strip('<>')
      status, text = 1, f"{name} can't be written ({error.strerror}). Make room, or redirect it."
    # The text may quote files and names of somebody else's.
    lines = map(library_errors.printable, f'{self.name}: {text}'.split('\n'))
    with contextlib.suppress(OSError):
      print(*lines, sep='\n', file=said_to)
    return status


@contextlib.contextmanager
def owner_only() -> Iterator[None]:
  """Lets the owner alone read all files that this block makes, whoever's code makes them.

  Some are secret (docs/privacy.md), and TensorFlow and Ray write some: only a umask is for all.
  """
  before = os.umask(0o077)
  try:
    yield
  finally:
    os.umask(before)


def _open_closed_streams() -> None:
  """Opens the standard streams that are closed, or a file of the run would be one of them."""
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    try:
      os.fstat(number)
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # It gets the smallest number that is free.
    if getattr(sys, name) is None:
      setattr(sys, name, open(number, 'r' if name == 'stdin' else 'w', closefd=False))


def _takes_text(stream: TextIO) -> bool:
  """Returns whether a stream takes one more line."""
  try:
    print(file=stream, flush=True)
  except OSError:
    return False
  return True


def remove_generated_files() -> None:
  """Removes the source files that AutoGraph wrote for this process into the temporary directory.

  AutoGraph itself removes them only where Python runs the functions of `atexit`.
  """
  for name, module in sys.modules.copy().items():  # Other threads may import.
    if name.startswith(_GENERATED):
      for path in (getattr(module, name, None) for name in ('__file__', '__cached__')):
        with contextlib.suppress(OSError, TypeError):
          os.remove(path)


def end(status: int) -> NoReturn:
  """Ends the process with an exit status, for a command that may have run TFF.

  Python would wait for clients of an abandoned round, and delete TFF's context after the modules
  that the context needs, with a traceback. All files are closed by then.
  """
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError):
      stream.flush()
  remove_generated_files()
  os._exit(status)
