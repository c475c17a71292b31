"""Flags of a command that has some of the same names as tasks.run's; and any flag's help."""

from collections.abc import Callable, Sequence
from typing import Any, Optional

from absl import flags

from tasks import errors


def asks_for_help(argv: Sequence[str]) -> bool:
  """Whether a command line has a flag for help."""
  return any(argument in ('--help', '-h', '-help') for argument in argv[1:])


def help_of(flag: flags.Flag) -> str:
  """A flag's name, meaning and default, as wrapped lines of a help page."""
  # DEFINE_enum repeats its values in the help text.
  text = flag.help.replace('\n', ' ')
  if isinstance(flag, flags.EnumFlag):  # Room for a line to break.
    text = text.replace('|', ' | ', len(flag.parser.enum_values) - 1)
  text = f'--{flag.name}: {text}'
  if flag.default not in (None, []):
    text += f' (default: {flag.default_as_str})'
  return flags.text_wrap(text, 90, '      ', '  ')


class OwnFlags:
  """Defines, explains and parses a command's own flags.

  Attributes:
    values: The flags.
    names: Their names, in the order of definition.
  """

  def __init__(self, program: str):
    self.values = flags.FlagValues()
    self.names = []
    self._program = program

  def define(
      self, kind: Callable[..., flags.FlagHolder], name: str, default: Any, text: str,
      **options: Any,
  ) -> flags.FlagHolder:
    """As `kind`, a function `flags.DEFINE_*`."""
    self.names.append(name)
    return kind(
        name=name, default=default, help=text, flag_values=self.values, **options
    )

  def help_text(self, lines: Sequence[str]) -> str:
    """The given lines, and every flag with its meaning and default."""
    return '\n'.join([*lines, *(help_of(self.values[name]) for name in self.names)])

  def parse(self, argv: Sequence[str]) -> Optional[list[str]]:
    """Parses a command line; returns what is no flag, or None if help is asked for.

    Raises:
      InputError: If a flag is unknown or a value not one of its kind.
    """
    for name in self.names:  # What an earlier command line in this process has set.
      self.values[name].unparse()
    if asks_for_help(argv):
      return None
    try:
      return self.values(argv)[1:]
    except flags.Error as error:
      raise errors.InputError(f'{error} (see {self._program} --help)') from None

  def refuse(self, rest: Sequence[str]) -> None:
    """Raises `InputError` if there is anything that is no flag."""
    if rest:
      raise errors.InputError(f'{rest[0]!r} is not a flag; see {self._program} --help.')
