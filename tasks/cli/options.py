"""Options: dataclass fields that carry every fact about a flag.

Each option is written once, as a field whose annotation is the flag's type:

  num_slots: Optional[int] = option(
      None, 'Slots per round.', group='Privacy', at_least=1, requires=when('sampling', 'poisson')
  )

`new_flags` defines the flags of such dataclasses, `make` turns parsed flags into an instance,
fills in defaults and checks it, and `help_text` explains the flags by group.
"""

from collections.abc import Callable, Mapping, Sequence
import copy
import dataclasses
import functools
import math
import os
import textwrap
from typing import Any, Optional, TypeVar, Union, get_args, get_origin, get_type_hints

from absl import flags

from tasks import errors
from tasks.cli import experiment_files

_Table = TypeVar('_Table')
_METADATA = 'option'
# absl groups flags by module, so that the name of a group is the name of a module.
_COMMON = 'Common flags'
_HELP_COLUMNS, _MAX_FORM = 90, 60
# What a flag takes in help, by absl's name of its type.
_FORMS = {'int': 'INTEGER', 'float': 'NUMBER', 'comma separated list of strings': 'A,B'}
_DEFINE = {
    bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


@dataclasses.dataclass(frozen=True)
class Condition:
  """A condition on other options, without which an option has no effect.

  Attributes:
    text: The condition, such as '--sampling=poisson'.
    met: Maps all values, by name, to whether they meet it.
  """

  text: str
  met: Callable[[Mapping[str, Any]], bool]


def when(name: str, *values: str) -> Condition:
  """Returns the condition that an option has one of these values."""
  *others, last = values
  text = f'{", ".join(others)} or {last}' if others else last
  return Condition(f'--{name}={text}', lambda chosen: chosen[name] in values)


@dataclasses.dataclass(frozen=True)
class Option:
  """All facts about one flag, except its name and type.

  Attributes:
    default: The flag's default.
    help: Its meaning and unit. It may begin with '<values>: ' if `values` are not all.
    group: Title of its list in `help_text`.
    values: Accepted texts; empty for all.
    repeated: Whether it may be given several times, which makes a list.
    is_path: Whether it is a path, whose `~` is the home directory: a shell expands it only at the
      start of a word, and not in files of flags.
    at_least: Inclusive lower bound.
    above: Exclusive lower bound.
    at_most: Inclusive upper bound.
    below: Exclusive upper bound.
    requires: The condition, on options before it, without which it has no effect and is refused;
      None for none.
    excludes: The names of options that cannot be set with it.
    default_fn: Returns the default from the values of options before it, by name, where `requires`
      and `excludes` allow a value; None leaves `default`.
    off: The flag's value that switches it off where its default does not; the instance has None.
    in_comparisons: Whether two runs that differ in it count as different in reports.
    common: Whether the short page of help lists it.
  """

  default: Any
  help: str
  group: str = 'Flags'
  values: Sequence[str] = ()
  repeated: bool = False
  is_path: bool = False
  at_least: Optional[float] = None
  above: Optional[float] = None
  at_most: Optional[float] = None
  below: Optional[float] = None
  requires: Optional[Condition] = None
  excludes: Sequence[str] = ()
  default_fn: Optional[Callable[[Mapping[str, Any]], Any]] = None
  off: Any = None
  in_comparisons: bool = True
  common: bool = False

  def allows(self, value: float) -> bool:
    """Returns whether a number is finite and in range."""
    # Written so that NaN, which compares false, is refused.
    return (
        -math.inf < value < math.inf
        and (self.at_least is None or value >= self.at_least)
        and (self.above is None or value > self.above)
        and (self.at_most is None or value <= self.at_most)
        and (self.below is None or value < self.below)
    )

  def range_text(self, kind: type) -> str:
    """Returns the type and range, such as 'a number > 0 and <= 1'."""
    signs = {'>=': self.at_least, '>': self.above, '<=': self.at_most, '<': self.below}
    noun = 'an integer' if kind is int else 'a number'
    if kind is float and self.at_most is None and self.below is None:
      noun = 'a finite number'
    return noun + ' and'.join(f' {sign} {b}' for sign, b in signs.items() if b is not None)

  def expand(self, value: Any) -> Any:
    """Returns a value of the flag, with the home directory for the `~` of a path."""
    if not self.is_path or value is None:
      return value
    return [*map(os.path.expanduser, value)] if self.repeated else os.path.expanduser(value)

  def has_effect(self, values: Mapping[str, Any]) -> bool:
    """Returns whether the other values let it have an effect."""
    return self.requires is None or self.requires.met(values)


def option(default: Any, help: str, **facts: Any) -> Any:  # pylint: disable=redefined-builtin
  """Returns a keyword-only dataclass field for an option, by `Option`'s attributes."""
  return dataclasses.field(
      kw_only=True, default_factory=lambda: copy.copy(default),
      metadata={_METADATA: Option(default, help, **facts)},
  )


@functools.cache
def options_of(table: type) -> Mapping[str, Option]:
  """Returns the options of a dataclass by name, in their order."""
  return {
      field.name: field.metadata[_METADATA]
      for field in dataclasses.fields(table)
      if _METADATA in field.metadata
  }


@functools.cache
def _types_of(table: type) -> Mapping[str, Any]:
  """Returns the types of the fields by name, Optional[x] as x."""
  return {
      name: get_args(kind)[0] if get_origin(kind) is Union else kind
      for name, kind in get_type_hints(table).items()
  }


class _Flags(flags.FlagValues):
  """Flags whose files set defaults, so that a flag is `present` only if it was typed.

  --flagfile may name a built-in file, on the command line and in other files.
  """

  def _get_flag_file_lines(self, filename, parsed_file_stack=None):
    path = str(experiment_files.locate(filename, experiment_files.FLAGS))
    try:
      lines = super()._get_flag_file_lines(path, parsed_file_stack)
    except (flags.CantOpenFlagFileError, UnicodeDecodeError) as error:
      reason = getattr(error.__context__, 'strerror', None) or error
      raise experiment_files.unreadable(
          'flagfile', filename, experiment_files.FLAGS, reason
      ) from None
    if parsed_file_stack is not None:  # The file of another file.
      return lines
    found = copy.deepcopy(self)
    unknown = found(['', *lines], known_only=True)[1:]
    for name in found:
      if found[name].present:
        self.set_default(name, found[name].value)
    return unknown


def new_flags(*tables: type) -> flags.FlagValues:
  """Returns new flags, at their defaults: one for each option of these dataclasses."""
  flag_values = _Flags()
  for table in tables:
    define(flag_values, table)
  return flag_values


def define(
    flag_values: flags.FlagValues, table: type, prefix: str = '', group: Optional[str] = None
) -> None:
  """Adds a flag for each option of a dataclass.

  Args:
    flag_values: The flags.
    table: The dataclass.
    prefix: The beginning of the flags' names.
    group: Title of their list in `help_text`; None: each option's own group.
  """
  for name, opt in options_of(table).items():
    choices = {}
    if opt.values:
      define_flag = flags.DEFINE_multi_enum if opt.repeated else flags.DEFINE_enum
      choices = {'enum_values': list(opt.values)}
    elif opt.repeated:
      define_flag = flags.DEFINE_multi_string
    else:
      define_flag = _DEFINE.get(_types_of(table)[name], flags.DEFINE_list)
    define_flag(
        prefix + name, opt.default, help=opt.help, flag_values=flag_values,
        module_name=group or opt.group, **choices,
    )
    flag_values[prefix + name].noun = 'PATH' if opt.is_path else 'NAME'
    if opt.common:
      flag_values.register_key_flag_for_module(_COMMON, flag_values[prefix + name])


def help_text(flag_values: flags.FlagValues, full: bool) -> str:
  """Returns the help of all flags, by group, or of the common ones if some are."""
  common = flag_values.key_flags_by_module_dict().get(_COMMON)
  groups = flag_values.flags_by_module_dict() if full or not common else {_COMMON: common}
  lists = ['\n'.join([f'{group}:', *map(_flag_text, found)]) for group, found in groups.items()]
  return '\n\n'.join(['', *lists, *([] if full or not common else ['All flags: --helpfull'])])[1:]


def _flag_text(flag: flags.Flag) -> str:
  """Returns the help of a flag: its name with the values that it takes, and below its meaning."""
  values, text, default = None, flag.help, flag.default
  if text.startswith('<'):  # An enumeration's values, which absl writes so too.
    values, text = text.removeprefix('<').split('>: ', 1)
    values = values.replace(' ', '')
  form = f'--{flag.name}={values or _FORMS.get(flag.flag_type(), flag.noun)}'
  if flag.boolean:
    form = f'--[no]{flag.name}'
  elif len(form) > _MAX_FORM:
    *others, last = values.split('|')
    form, (meaning, _, rest) = f'--{flag.name}={flag.noun}', text.partition('. ')
    text = f'{meaning.rstrip(".")}: one of {", ".join(others)} and {last}. {rest}'.rstrip()
  if flag.flag_type().startswith('multi'):  # After the semicolon is a sentence of absl's.
    text = f'{text.rsplit(";", 1)[0].rstrip(".")}. May be repeated.'
  if default not in (None, [], '', False) or default == 0 and not flag.boolean:
    shown = ', '.join(default) if isinstance(default, list) else str(default).removesuffix('.0')
    if '(default' not in text:
      text = f'{text.rstrip(".")} (default: {shown.lower() if flag.boolean else shown}).'
  return f'  {form}\n' + textwrap.fill(
      text, _HELP_COLUMNS, initial_indent=' ' * 6, subsequent_indent=' ' * 6,
      break_long_words=False, break_on_hyphens=False,
  )


def make(table: type[_Table], parsed: flags.FlagValues, prefix: str = '') -> _Table:
  """Returns an instance of a dataclass of options.

  Flags of a --flagfile that have no effect, or that a typed flag excludes, are left at their
  defaults.

  Args:
    table: The dataclass.
    parsed: Flags that `new_flags` made, parsed.
    prefix: The beginning of the flags' names.

  Raises:
    InputError: If an option is out of range, has no effect, or excludes another that is set.
  """
  opts = options_of(table)
  typed = {name for name in opts if parsed[prefix + name].present}
  values = {name: parsed[prefix + name].value for name in opts}
  given = typed | {name for name, opt in opts.items() if values[name] != opt.default}
  values = {name: opt.expand(values[name]) for name, opt in opts.items()}
  for name, opt in opts.items():
    is_excluded = not typed.isdisjoint(opt.excludes) or any(
        name in opts[other].excludes for other in typed
    )
    if name in given - typed and (is_excluded or not opt.has_effect(values)):
      given.remove(name)
      values[name] = opt.default
    if name not in given and opt.default_fn is not None and opt.has_effect(values):
      if all(values[other] is None for other in opt.excludes):
        values[name] = opt.default_fn(values)
  for name, opt in opts.items():
    kind, value = _types_of(table)[name], values[name]
    if name in given and not opt.has_effect(values):
      raise no_effect(prefix + name, opt.requires.text)
    for other in opt.excludes:
      if name in given and other in given:
        raise errors.InputError(
            f'{flag_of(prefix + name, value)} and {flag_of(prefix + other, values[other])}'
            ' exclude each other. Remove one of them.'
        )
    if kind in (int, float) and value is not None and not opt.allows(value):
      raise errors.InputError(f'--{prefix}{name} must be {opt.range_text(kind)}; got {value}.')
  return table(**{
      name: None if opt.off is not None and values[name] == opt.off else values[name]
      for name, opt in opts.items()
  })


def no_effect(name: str, condition: str) -> errors.InputError:
  """Returns the error of a flag that is set though a condition is not met."""
  return errors.InputError(
      f'--{name} has no effect unless {condition}. Set that, or remove --{name}.'
  )


def flag_of(name: str, value: Any) -> str:
  """Returns a value as a flag of a command line."""
  if isinstance(value, bool):
    return f'--{name}' if value else f'--no{name}'
  text = ','.join(map(str, value)) if isinstance(value, list) else value
  return f'--{name}={text}'
