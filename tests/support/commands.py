"""Small runs of `python -m tasks.run`, in this process and as one of their own."""

from collections.abc import Mapping
import csv
import subprocess
import sys
import types
from typing import Any

import tensorflow as tf

from tasks import run
from tests.support import forked
from tests.support import waiting

# Parameters of tiny_task's model, with 5x5 convolutions of two filters.
DIM = 52 + 102 + 7 * 7 * 2 * 4 + 4 + 4 * 10 + 10


def tiny(data_dir, output_dir, *arguments):
  """Returns a command line: `fedsmp_randk`, which compiles soonest, unless `arguments` differ."""
  if not any('--algorithm' in a for a in arguments):
    arguments = ('--algorithm=fedsmp_randk', '--p=0.1', *arguments)
  without_public = any(
      name in a for a in arguments for name in ('randk', 'fedavg', 'fedsmp_released')
  )
  return [
      'run', '--task=tests.support.tiny_task', f'--data_dir={data_dir}',
      f'--output_dir={output_dir}',
      '--batch_size=5' if without_public else '--public_examples=8', *arguments,
  ]


# For `command`.
CHECKPOINT_EACH_ROUND = {'fedsmp_tff.program.checkpoints._MAX_FRACTION_OF_TIME': 1e9}


def command(arguments, constants: Mapping[str, Any] = types.MappingProxyType({})):
  """Starts the command in a forked process; for `constants` see `forked.Process`."""
  return forked.Process('tasks.run', arguments[1:], constants)


def started(arguments):
  """Starts the command as a user does, imports and all."""
  return subprocess.Popen(
      [sys.executable, '-m', 'tasks.run', *arguments[1:]],
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  )


def ended(command, status=0):
  """Waits for the end of a command with a status; returns its stdout and stderr."""
  printed, err = command.communicate(timeout=waiting.SECONDS)
  assert command.returncode == status and 'Traceback' not in err, err
  return printed, err


def rows(path):
  with open(path, encoding='utf-8') as file:
    return list(csv.DictReader(file))


def events(path):
  """(step, column, time) of each value in the TensorBoard events of a directory."""
  return [
      (event.step, value.tag, event.wall_time)
      for file in sorted(path.glob('events.out.tfevents.*'))
      for event in tf.compat.v1.train.summary_iterator(str(file))
      for value in event.summary.value
  ]


main = run.main  # The command in this process.


def of_module(capsys, module, *arguments):
  """Runs a module's command in this process; returns its exit status, stdout and stderr."""
  status = module.main([module.__name__, *arguments])
  captured = capsys.readouterr()
  return status, captured.out, captured.err


def refused(capsys, module, *arguments):
  """Runs a command that must be refused; returns the one sentence it says."""
  status, out, said = of_module(capsys, module, *arguments)
  assert status == 2 and 'epsilon' not in out  # No plan, and no result.
  assert said.startswith(f'{module.__name__}: ') and said.count('\n') == 1
  return said


def say(capsys, *arguments):
  """Runs `tasks.run`, which must be refused; returns the sentence it says."""
  return refused(capsys, run, *arguments)


def story(out):
  """Returns a run's metrics and weights, which follow from its seed, as bytes."""
  return tuple((out / name).read_bytes() for name in ('metrics.csv', 'weights.npz'))
