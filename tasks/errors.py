"""The errors of commands, and blocks that turn others into them."""

from collections.abc import Iterable, Iterator
import contextlib
import difflib
import signal
from typing import Any

from fedsmp_tff import errors


class InputError(errors.Error):
  """A flag, a value or a file is wrong; the text states the rule and the remedy."""

  exit_status = 2


class RunError(errors.Error):
  """A run that has begun cannot continue; the text states the reason and the remedy."""


class Interrupted(KeyboardInterrupt):
  """A signal asked the command to end; `next_step` ends the sentence with how to resume."""

  argument = None

  def __init__(self, number: int, next_step: str = ''):
    super().__init__(f'ended by {signal.Signals(number).name}{next_step}')
    self.exit_status = 128 + number


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
