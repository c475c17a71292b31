"""`python -m tasks.run --task=TASK`: trains with Fed-SMP or a sibling, and says what it spent."""

import os
import signal
import sys

if __name__ == '__main__':
  # While packages are imported, Ctrl-C ends without a traceback.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
# TensorFlow's notes on its start say nothing about a run.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from fedsmp_tff import _platform

if _platform.problem():
  sys.exit(f'tasks.run: {_platform.problem()}')

# pylint: disable=g-import-not-at-top
import contextlib
import dataclasses
import secrets
import time
from typing import Optional

import numpy as np
import tensorflow as tf

from fedsmp_tff import runtime
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import checkpoints as checkpoints_lib
from tasks import datasets
from tasks import errors
from tasks.config import command
from tasks.config import runtime as runtime_lib
from tasks.config import settings as settings_lib
from tasks.config import task_flags
from tasks.training import experiment
from tasks.training import interruption as interruption_lib
from tasks.training import plan as plan_lib
from tasks.training import resuming
from tasks.training import run_directory
from tasks.training import seeds as seeds_lib
from tasks.training import train

_COMMAND = command.Command(
    'tasks.run',
    (
        'usage: python -m tasks.run --task=TASK [flags]',
        '',
        'Trains a model with Fed-SMP or a system to compare it with, prints the plan and',
        'the privacy spent, and writes the run to --output_dir. For instance:',
        '  python -m tasks.run --task=shakespeare --p=0.05',
        '  python -m tasks.run --task=fashion_mnist --algorithm=fedsmp_randk --p=0.4 --seed=1',
        '',
        'A flag that has no effect with the task or the algorithm is an error. The same command',
        'with the same --output_dir resumes a run, however it ended.',
        *settings_lib.help_lines(),
    ),
    parse=settings_lib.parse,
    failures=(
        errors.RunError, checkpoints_lib.CheckpointError, ledger_lib.LedgerError,
        runtime.WorkersLostError, interruption_lib.Interrupted,
    ),
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  return _COMMAND.main(argv, _main)


def _main(
    settings: settings_lib.RunSettings,
    place: runtime_lib.RuntimeSettings,
    output: settings_lib.OutputSettings,
) -> int:
  task_flags.use(settings.task_flags)
  interruption = interruption_lib.Interruption(output.grace_seconds)
  runtime_lib.prepare(place, seeded=settings.seed is not None)
  with interruption.handled(), runtime_lib.context(place):
    return _run(settings, place, output, interruption)


def _run(
    settings: settings_lib.RunSettings,
    place: runtime_lib.RuntimeSettings,
    output: settings_lib.OutputSettings,
    interruption: interruption_lib.Interruption,
) -> int:
  flags = settings_lib.identity(settings)
  path = output.output_dir or _default_output_dir(settings)
  with run_directory.RunDirectory(path, output.overwrite) as out:
    if out.config is not None:
      resuming.check_identity(out.path, out.config, flags)
    task = datasets.TASKS[settings.task]
    seeds = seeds_lib.make(settings.seed, out.config)
    _check_clients(settings, task.num_clients())
    model = experiment.model(settings, seeds)
    dim = sum(int(np.size(w)) for w in tf.nest.flatten(model.initial_weights[0]))
    _check_kept(settings, dim)
    specs = None
    if task.num_clients() is not None:  # Before data are loaded, if that can be.
      specs = experiment.specs(
          settings, task.num_clients(), experiment.num_kept(settings, dim)
      )
    data = task.load(
        seeds.partition, settings.public_examples or 0, settings.held_out or 0
    )
    _check_clients(settings, len(data.clients))
    if out.config is not None:
      resuming.check_data(out.path, out.checkpoints, out.config, data)
    sparsifier = experiment.sparsifier(settings, data)
    spec, hypothetical = specs or experiment.specs(
        settings, len(data.clients), experiment.num_kept(settings, dim)
    )
    factory = experiment.factory(settings, spec, sparsifier)
    plan = plan_lib.make(settings, data, dim, factory, spec, hypothetical)
    print(plan.text(), flush=True)
    print(f'\noutput: {out.path}\n', flush=True)
    surroundings = resuming.surroundings(place)
    config = out.config
    if config is None:
      config = {
          **dataclasses.asdict(settings),
          **plan.as_dict(),
          **surroundings,
          'flags': flags,
          'seeds': seeds.public(),
          'run_id': secrets.token_hex(8),
      }
      out.begin(config)
    for change in resuming.changes(config, surroundings):
      print(f'tasks.run: {change}; last bits may differ.', file=sys.stderr)
    with checkpoints_lib.Checkpoints(
        out.checkpoints, config['run_id'].encode(),
        rounds_per_checkpoint=output.rounds_per_checkpoint,
    ) as checkpoints:
      if out.config is not None and checkpoints.empty():
        out.go_on_without_checkpoint()
      resuming.keep_data_digest(out.checkpoints, data)
      ledger = contextlib.nullcontext()
      if plan.private:
        ledger = out.ledger(
            spec, config['run_id'], settings.seed is not None,
            began=not checkpoints.empty(),
        )
      with ledger as ledger:
        stopped_by = train.train(
            plan, model, factory, seeds, out, checkpoints, ledger, interruption
        )
  if isinstance(stopped_by, interruption_lib.Interrupted):
    print(
        f'tasks.run: {stopped_by}; the same command with --output_dir={out.path} goes'
        ' on.',
        file=sys.stderr,
    )
    return stopped_by.status
  if stopped_by is not None:
    raise stopped_by
  return 0


def _default_output_dir(settings: settings_lib.RunSettings) -> str:
  now = time.strftime('%Y%m%d-%H%M%S')
  # Batch jobs that start in the same second keep apart.
  return f'runs/{settings.task}-{settings.algorithm}-{now}-{os.getpid()}'


def _check_clients(
    settings: settings_lib.RunSettings, num_clients: Optional[int]
) -> None:
  if num_clients is not None and settings.clients_per_round > num_clients:
    raise errors.InputError(
        f'--clients_per_round={settings.clients_per_round} is more than the'
        f' {num_clients} clients in the data; lower it.'
    )


def _check_kept(settings: settings_lib.RunSettings, dim: int) -> None:
  if settings.k is not None and settings.k > dim:
    raise errors.InputError(
        f'--k={settings.k} is more than the d={dim} parameters of the model;'
        ' lower it.'
    )


if __name__ == '__main__':
  exit_status = main(sys.argv)
  if exit_status > 128:
    # Clients of a round that was abandoned may still run; Python would wait for them.
    sys.stdout.flush()
    os._exit(exit_status)
  sys.exit(exit_status)
