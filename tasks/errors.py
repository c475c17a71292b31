"""Defines the errors that a command prints in one line, without a traceback."""

from collections.abc import Collection, Iterable, Iterator
import contextlib
import difflib
import re
from typing import Any

# What a user of a command calls the arguments of the library that are not flags by their own name.
_WORDS = {
    'adaptive_clipping': '--clip_quantile', 'clipping_norm': '--clip',
    'compression_ratio': '--p',
    'num_slots': 'the number of slots', 'population': 'the number of clients',
}


class InputError(Exception):
  """A flag, a value or a file is wrong; the text states the rule and the remedy."""


class RunError(Exception):
  """A run that has begun cannot continue; the text states the reason and the remedy."""


def with_flags(text: str, names: Collection[str]) -> str:
  """Returns an error's text with flags, or words, in place of the library's arguments."""

  def word(match):
    name, equals = match.groups()
    if name in names:
      return f'--{name}{equals}'
    words = _WORDS.get(name, name)
    return words + (equals if words.startswith('--') else equals and ', ')

  return re.sub('`([a-z_]+)`(=?)', word, text)


@contextlib.contextmanager
def naming_flags(names: Collection[str]) -> Iterator[None]:
  """Turns a `ValueError` of its block into an `InputError`, with flags in place of arguments."""
  try:
    yield
  except ValueError as error:
    raise InputError(f'{with_flags(str(error), names).rstrip(".")}.') from None


def did_you_mean(text: str, choices: Iterable[str]) -> str:
  """Returns ' Did you mean CHOICE?' for the choice that is like a text; '' if none is."""
  close = difflib.get_close_matches(text, choices, n=1)
  return f' Did you mean {close[0]}?' if close else ''


@contextlib.contextmanager
def writing_to(flag: str, directory: Any) -> Iterator[None]:
  """Turns an `OSError` of its block into the `InputError` of a flag's directory."""
  try:
    yield
  except OSError as error:
    raise InputError(
        f"--{flag}={directory} can't be written ({error.strerror}). Use a writable path."
    ) from None


@contextlib.contextmanager
def refusing_unseeded_draws(seed: int) -> Iterator[None]:
  """Raises `InputError` if a model of the block draws random numbers without a seed."""
  try:
    yield
  except RuntimeError as error:  # TensorFlow's, with TF_DETERMINISTIC_OPS.
    if 'determinism' not in str(error):
      raise
    raise InputError(
        f'--seed={seed}: the model draws random numbers without a seed, as dropout does, so that no'
        ' two runs would be equal. Remove such layers, or remove --seed. (With a seed of their own'
        ' they run, but two runs still differ.)'
    ) from None
