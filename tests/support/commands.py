"""Small runs of `python -m tasks.run`, in this process and as one of their own."""

from collections.abc import Mapping
import csv
import subprocess
import sys
import types
from typing import Any

from absl.testing import flagsaver
import numpy as np
import tensorflow as tf

from tasks import run

# 5x5 convolutions of two filters: 600 parameters.
_TINY = (
    '--recipe=none',
    '--task=fashion_mnist', '--fashion_mnist_filters=2,2',
    '--fashion_mnist_dense_units=4', '--fashion_mnist_clients=12',
    '--clients_per_round=3', '--rounds=3', '--local_epochs=1', '--rounds_per_evaluation=1',
)
DIM = 52 + 102 + 7 * 7 * 2 * 4 + 4 + 4 * 10 + 10


def tiny(data_dir, output_dir, *arguments):
  return [
      'run', *_TINY, f'--fashion_mnist_dir={data_dir}',
      f'--output_dir={output_dir}', '--public_examples=8' if not any(
          other in a for a in arguments for other in ('randk', 'fedavg', 'fedsmp_released', '_head')
      ) else '--batch_size=5', *arguments,
  ]


# Constants for `command`.
LONG_GRACE = {'tasks.training.interruption._GRACE_SECONDS': 100_000.0}
CHECKPOINT_EACH_ROUND = {'fedsmp_tff.program.checkpoints._SHARE_OF_TIME': 1e9}


def command(arguments, constants: Mapping[str, Any] = types.MappingProxyType({})):
  """The command as a process, in which constants of modules, by full name, have other values."""
  program = ['-m', 'tasks.run']
  if constants:
    parts = [(*name.rpartition('.')[::2], value) for name, value in constants.items()]
    lines = [f'import {module}; {module}.{name} = {value!r}' for module, name, value in parts]
    lines.append('import runpy; runpy.run_module("tasks.run", {}, "__main__", alter_sys=True)')
    program = ['-c', '\n'.join(lines)]
  return subprocess.Popen(
      [sys.executable, *program, *arguments[1:]],
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  )


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


def main(arguments):
  """The command in this process, its flags forgotten afterwards."""
  with flagsaver.flagsaver():
    return run.main(arguments)


def of_module(capsys, module, *arguments):
  """A command, by its module, in this process: its exit status, stdout and stderr."""
  with flagsaver.flagsaver():
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
  """The same of tasks.run."""
  return refused(capsys, run, *arguments)


def story(out):
  """What two runs of one seed have in common: metrics and weights, byte for byte."""
  with np.load(out / 'weights.npz') as weights:
    return (
        (out / 'metrics.csv').read_bytes(),
        b''.join(weights[n].tobytes() for n in sorted(weights)),
    )
