"""`python -m tasks.export RUN_DIR`: a run's model for TensorFlow alone."""

import os
import sys

# TensorFlow's notes on its start have nothing about a model.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
import dataclasses
import pathlib
from typing import Optional

from fedsmp_tff import _platform
from tasks import errors
from tasks.config import command
from tasks.config import options as options_lib


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  output: Optional[str] = options_lib.option(
      None, 'Directory to write, which must not exist (default: RUN_DIR/saved_model).'
  )
  weights: str = options_lib.option(
      'weights.npz',
      'File of weights in RUN_DIR, such as weights_exponential.npz, those of an average.',
  )


_COMMAND = command.Command(
    'tasks.export',
    (
        'usage: python -m tasks.export RUN_DIR [flags]',
        '',
        'Writes the trained model of a run as a SavedModel, which TensorFlow loads without this',
        'package, and prints the names and shapes of its weights. It follows from the released',
        'model: epsilon is unchanged. In Python:',
        "  model = tf.saved_model.load('RUN_DIR/saved_model')",
        "  logits = model.logits(x)['logits']",
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
  output = path / 'saved_model' if options.output is None else pathlib.Path(options.output)
  if output.exists():
    raise errors.InputError(f'--output={output} exists; remove it, or name another directory.')
  if _platform.problem():
    raise errors.RunError(_platform.problem())
  from tasks.training import saved

  found = saved.load(path, options.weights)
  with errors.writing_to('output', str(output)):
    saved.Exported(found).save(output)
  for name, value in found.named_weights().items():
    print(f'{name:<24} {value.dtype}{list(value.shape)}')
  spec = found.model.input_spec[0]
  print(f'{output}: a SavedModel of {spec.dtype.name}{list(spec.shape)} to logits')


if __name__ == '__main__':
  command.end(main(sys.argv))
