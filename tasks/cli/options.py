"""Options: fields of dataclasses that carry every fact about a flag.

Each option is written once, as a field whose annotation is the flag's type:

  num_slots: Optional[int] = option(
      None, 'Slots of a round.', group='Privacy', at_least=1, only=when('sampling', 'poisson')
  )

`new_flags` defines the flags of such dataclasses, `make` turns parsed flags into an instance,
fills in what is missing and checks it, and `help_lines` explains the flags by group.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import functools
import math
import re
import types
from typing import Any, Optional, TypeVar, Union, get_args, get_origin, get_type_hints

from absl import flags

from tasks import errors

_Table = TypeVar('_Table')
_METADATA = 'option'
_REPEAT_HINT = ';\n    repeat this option to specify a list of values'
_COLUMNS = 90


@dataclasses.dataclass(frozen=True)
class Condition:
  """A condition on other options for an option to have an effect.

  Attributes:
    text: The condition as the end of "has no effect unless", such as '--sampling=poisson'.
    met: Maps all values, by name, to whether they meet it.
  """

  text: str
  met: Callable[[Mapping[str, Any]], bool]


def when(name: str, *values: str) -> Condition:
  """The condition that an option has one of these values; without values, that it is set."""
  if not values:
    return Condition(f'--{name} is set', lambda chosen: chosen[name] is not None)
  *others, last = values
  text = f'{", ".join(others)} or {last}' if others else last
  return Condition(f'--{name}={text}', lambda chosen: chosen[name] in values)


@dataclasses.dataclass(frozen=True)
class Option:
  """Everything there is to know about one flag, apart from its name and type.

  Attributes:
    default: The flag's default.
    help: Its meaning and unit.
    group: The title that `help_lines` lists it under; '' for none.
    values: The texts that it accepts; empty for all.
    other_values: What else it accepts, beside `values`, for its help; '' for nothing.
    repeated: Whether giving it several times makes a list.
    required: Whether it must be given.
    at_least: The smallest value.
    above: A value that all values are greater than.
    at_most: The largest value.
    below: A value that all values are less than.
    only: The condition without which it has no effect and is refused; None for none.
    excludes: The names of options that can't be set with it.
    fill: Makes the value where none is given, from all values by name, unless `only` or
      `excludes` forbids one; None leaves the default.
    compared: Whether two runs that differ in it count as different in reports.
    common: Whether the short page of help lists it.
  """

  default: Any
  help: str
  group: str = ''
  values: Sequence[str] = ()
  other_values: str = ''
  repeated: bool = False
  required: bool = False
  at_least: Optional[float] = None
  above: Optional[float] = None
  at_most: Optional[float] = None
  below: Optional[float] = None
  only: Optional[Condition] = None
  excludes: Sequence[str] = ()
  fill: Optional[Callable[[Mapping[str, Any]], Any]] = None
  compared: bool = True
  common: bool = False

  def allows(self, value: float) -> bool:
    """Whether a number is finite and in range."""
    # Written so that NaN, which compares false, is refused.
    return (
        -math.inf < value < math.inf
        and (self.at_least is None or value >= self.at_least)
        and (self.above is None or value > self.above)
        and (self.at_most is None or value <= self.at_most)
        and (self.below is None or value < self.below)
    )

  @property
  def range_text(self) -> str:
    """The range, such as ' > 0 and <= 1'."""
    bounds = (
        ('>=', self.at_least), ('>', self.above), ('<=', self.at_most), ('<', self.below),
    )
    return ' and'.join(f' {sign} {bound}' for sign, bound in bounds if bound is not None)

  @property
  def bounded_above(self) -> bool:
    return self.at_most is not None or self.below is not None

  def open_to(self, values: Mapping[str, Any]) -> bool:
    """Whether other options let it have a value."""
    return (self.only is None or self.only.met(values)) and all(
        values[other] is None for other in self.excludes
    )


def option(default: Any, help: str, **facts: Any) -> Any:  # pylint: disable=redefined-builtin
  """Returns a keyword-only dataclass field for an option, by `Option`'s attributes."""
  one = Option(default, help, **facts)
  begins = {'default': default}
  if one.required or one.fill is not None:
    begins = {}  # The flag's default is no value for it.
  elif isinstance(default, list):
    begins = {'default_factory': default.copy}
  return dataclasses.field(kw_only=True, metadata={_METADATA: one}, **begins)


@functools.cache
def options_of(table: type) -> Mapping[str, Option]:
  """The options of a dataclass by name, in their order."""
  return types.MappingProxyType({
      field.name: field.metadata[_METADATA]
      for field in dataclasses.fields(table)
      if _METADATA in field.metadata
  })


def new_flags(*tables: type) -> flags.FlagValues:
  """New flags, at their defaults: one for each option of these dataclasses."""
  made = flags.FlagValues()
  for table in tables:
    define(made, table)
  return made


def define(made: flags.FlagValues, table: type, prefix: str = '') -> None:
  """Adds a flag for each option of a dataclass, whose name begins with `prefix`."""
  kinds = _types_of(table)
  for name, one in options_of(table).items():
    _define(made, prefix + name, kinds[name], one)


def make(
    table: type[_Table],
    parsed: flags.FlagValues,
    presets: Collection[str] = (),
    prefix: str = '',
    **others: Any,
) -> _Table:
  """An instance of a dataclass of options.

  Args:
    table: The dataclass.
    parsed: Flags that `new_flags` made, parsed.
    presets: The names of flags that a --flagfile alone sets. Those that have no effect, or that
      another flag excludes, are left at their defaults.
    prefix: What the flags' names begin with.
    **others: Values of the fields that are no options.

  Raises:
    InputError: If a required option is missing, or one is out of range, has no effect, or
      excludes another that is set.
  """
  known = options_of(table)
  for name, one in known.items():
    if one.required and parsed[prefix + name].value is None:
      choices = f' to one of {", ".join(one.values)}' if one.values else ''
      raise errors.InputError(f'--{prefix}{name} is not set; set it{choices}.')
  given = {name for name in known if parsed[prefix + name].present}
  preset = {name for name in given if prefix + name in presets}
  while True:
    values = {
        name: parsed[prefix + name].value if name in given else one.default
        for name, one in known.items()
    }
    for name, one in known.items():
      if name not in given and values[name] is None and one.fill and one.open_to(values):
        values[name] = one.fill(values)
    idle = {
        name for name in preset & given
        if not _has_effect(known[name], values)
        or any(name in known[other].excludes or other in known[name].excludes
               for other in given - preset)
    }
    if not idle:
      break
    given -= idle
  check(table, values, given, prefix)
  return table(**values, **others)


def _has_effect(one: Option, values: Mapping[str, Any]) -> bool:
  return one.only is None or one.only.met(values)


def flag_of(name: str, value: Any) -> str:
  """A value as a flag of a command line."""
  if isinstance(value, bool):
    return f'--{name}' if value else f'--no{name}'
  return f'--{name}={_text(value)}'


def check(
    table: type, values: Mapping[str, Any], given: Collection[str], prefix: str = ''
) -> None:
  """Checks the values of a dataclass's options.

  Args:
    table: The dataclass.
    values: All of its options' values, by name.
    given: The names of those that the user has set.
    prefix: What the flags' names begin with.

  Raises:
    InputError: If one is out of range, or has no effect, or excludes another that is set.
  """
  known = options_of(table)
  for name in [name for name in known if name in given]:
    one = known[name]
    if not _has_effect(one, values):
      raise errors.InputError(
          f'--{prefix}{name} has no effect unless {one.only.text}; set it, or drop --{prefix}{name}.'
      )
    for other in one.excludes:
      if other in given:
        raise errors.InputError(
            f'--{name}={_text(values[name])} and --{other}={_text(values[other])} exclude each'
            ' other; set one of them.'
        )
  kinds = _types_of(table)
  for name, one in known.items():
    value = values[name]
    if kinds[name] in (int, float) and value is not None and not one.allows(value):
      kind = 'an integer' if kinds[name] is int else 'a number'
      if kinds[name] is float and not one.bounded_above:
        kind = 'a finite number'
      raise errors.InputError(f'--{prefix}{name} must be {kind}{one.range_text}; got {value}.')


def common_help_lines(title: str, parsed: flags.FlagValues, *tables: type) -> list[str]:
  """The help of the common options of these dataclasses, below a title."""
  texts = [
      help_of(parsed[name])
      for table in tables
      for name, one in options_of(table).items()
      if one.common
  ]
  return ['', title, *texts, '', 'All flags: --helpfull']


def help_lines(parsed: flags.FlagValues, *tables: type) -> list[str]:
  """The help of all options of these dataclasses, by group in the order of first mention."""
  groups: dict[str, list[str]] = {}
  for table in tables:
    for name, one in options_of(table).items():
      groups.setdefault(one.group, []).append(help_of(parsed[name]))
  lines = []
  for title, texts in groups.items():
    lines += ['', *([f'{title}:'] if title else []), *texts]
  return lines


def help_of(flag: flags.Flag) -> str:
  """A flag's name, meaning and default, as wrapped lines of a help page."""
  text = flag.help.removesuffix(_REPEAT_HINT).replace('\n', ' ')
  # A list of values gets room for a line to break.
  text = re.sub('^<[^>]*>', lambda values: values[0].replace('|', ' | '), text)
  if flag.default not in (None, []):
    text = f'{text.removesuffix(".")} (default: {_text(flag.default)}).'
  return wrapped(f'--{flag.name}: {text}')


def wrapped(text: str) -> str:
  """A paragraph of a help page, its first line less indented."""
  return flags.text_wrap(text, _COLUMNS, '      ', '  ')


def _text(value: Any) -> str:
  """A flag's value as in a command line."""
  if isinstance(value, list):
    return ','.join(map(str, value))
  return str(value).lower() if isinstance(value, bool) else str(value)


@functools.cache
def _types_of(table: type) -> Mapping[str, Any]:
  """The fields' types by name, Optional[x] as x."""
  hints = get_type_hints(table)
  return {
      name: get_args(kind)[0] if get_origin(kind) is Union else kind
      for name, kind in hints.items()
  }


def _define(made: flags.FlagValues, name: str, kind: Any, one: Option) -> None:
  if kind is bool:
    define = flags.DEFINE_boolean
  elif kind is int:
    define = flags.DEFINE_integer
  elif kind is float:
    define = flags.DEFINE_float
  elif one.values and not one.other_values:
    define = flags.DEFINE_multi_enum if one.repeated else flags.DEFINE_enum
  elif kind is str:
    define = flags.DEFINE_string
  else:
    define = flags.DEFINE_multi_string if one.repeated else flags.DEFINE_list
  choices, text = {}, one.help
  if one.other_values:
    text = f'<{"|".join((*one.values, one.other_values))}>: {one.help}'
  elif one.values:
    choices = {'enum_values': list(one.values)}
  define(name, one.default, help=text, flag_values=made, **choices)
