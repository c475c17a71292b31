"""`python -m tasks.generate RUN_DIR`: a passage that a trained model of characters writes."""

import os
import sys

# TensorFlow's notes on its start have nothing about a passage.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
import dataclasses
import pathlib
from typing import Optional

from fedsmp_tff import _platform
from tasks import errors
from tasks.config import command
from tasks.config import options as options_lib
from tasks.training import run_directory

_TASK = 'shakespeare'


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  prompt: str = options_lib.option('ROMEO. ', 'The text that the passage continues.')
  length: int = options_lib.option(300, 'Characters to write.', at_least=1)
  temperature: float = options_lib.option(
      0.7,
      'Divides the logits: below 1 the model takes likely characters more often; near 0 always the'
      ' likeliest.',
      above=0,
  )
  seed: Optional[int] = options_lib.option(
      None, 'Makes the passage reproducible (default: a new one each time).', at_least=0
  )


_COMMAND = command.Command(
    'tasks.generate',
    (
        'usage: python -m tasks.generate RUN_DIR [flags]',
        '',
        'Prints a passage that the model of a Shakespeare run writes, character by character. It',
        'follows from the released model: epsilon is unchanged. For instance:',
        "  python -m tasks.generate runs/RUN --prompt='To be, or not'",
    ),
    (Options,),
    parse=command.parse_with_arguments,
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  return _COMMAND.main(argv, _main)


def _main(options: Options, run_dirs: list[str]) -> None:
  if len(run_dirs) != 1:
    raise errors.InputError(f'name one run directory; got {len(run_dirs)}.')
  path = pathlib.Path(run_dirs[0])
  task = run_directory.read_json(path / run_directory.CONFIG).get('task', _TASK)
  if task != _TASK:
    raise errors.InputError(
        f"{path} is a run of {task}, whose model writes no text; name a run of {_TASK}."
    )
  if _platform.problem():
    raise errors.RunError(_platform.problem())
  from tasks.training import passages
  from tasks.training import saved

  text = passages.passage(
      saved.load(path).model, options.prompt, options.length, options.temperature, options.seed
  )
  print(options.prompt + text)


if __name__ == '__main__':
  command.end(main(sys.argv))
