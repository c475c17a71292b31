"""Defines the errors that a command prints in one line, without a traceback."""

from collections.abc import Iterable, Iterator
import contextlib
from typing import Any


class InputError(Exception):
  """A flag, a value or a file is wrong; the text states the rule and the remedy."""


class RunError(Exception):
  """A run that has begun cannot continue; the text states the reason and the remedy."""


@contextlib.contextmanager
def naming_flags(names: Iterable[str]) -> Iterator[None]:
  """Turns a `ValueError` of its block into an `InputError`, with flags in place of arguments."""
  try:
    yield
  except ValueError as error:
    text = str(error).rstrip('.')
    for name in names:
      text = text.replace(f'`{name}`', f'--{name}')
    raise InputError(f'{text}.') from None


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
        ' two runs would be equal. Give a seed to the layers that draw, or remove --seed.'
    ) from None
