"""`python -m tasks.run --task=TASK`: trains with Fed-SMP or a sibling, and prints what it spent."""

import contextlib
import os
import signal
import sys
import time

if __name__ == '__main__':
  # While packages are imported, Ctrl-C ends without a traceback.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
# TensorFlow's notes on its start have nothing about a run.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from fedsmp_tff import _platform

if _platform.problem():
  sys.exit(f'tasks.run: {_platform.problem()}')

# pylint: disable=g-import-not-at-top
from tasks.cli import command
from tasks.cli import place as place_lib
from tasks.cli import plugins
from tasks.cli import settings as settings_lib
from tasks.training import finished


def _failures() -> tuple[type[BaseException], ...]:
  """What ends a run with a sentence and exit status 1, or its attribute `status`."""
  from fedsmp_tff import runtime
  from fedsmp_tff.privacy import budget
  from fedsmp_tff.privacy import ledger
  from fedsmp_tff.program import checkpoints
  from tasks import errors
  from tasks.cli import interruption

  return (
      errors.RunError, checkpoints.CheckpointError, ledger.LedgerError, budget.BudgetSpentError,
      runtime.WorkersLostError, interruption.Interrupted,
  )


_COMMAND = command.Command(
    'tasks.run',
    (
        'usage: python -m tasks.run --task=TASK [flags]',
        '',
        'Trains a model with Fed-SMP or a system to compare it with, prints the plan and',
        'the privacy spent, and writes the run to --output_dir. For instance:',
        '  python -m tasks.run --task=shakespeare --p=0.05',
        '  python -m tasks.run --task=fashion_mnist --algorithm=dp_fedavg --seed=1',
        '  python -m tasks.run --flagfile=tasks/experiments/paper/fashion_mnist.flags --p=0.005',
        '',
        'A flag that has no effect with the task or the algorithm is an error. The same command',
        'with the same --output_dir resumes a run, however it ended.',
    ),
    flag_help=settings_lib.help_lines,
    parse=settings_lib.parse,
    failures=_failures,
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  return _COMMAND.main(argv, run)


def run(
    settings: settings_lib.RunSettings,
    place: place_lib.PlaceSettings,
    output: place_lib.OutputSettings,
) -> int:
  """Algorithm 1 as a run. On the right: the lines of the paper.

  Args:
    settings: What to run.
    place: Where.
    output: Where its files are; a run that is there is resumed.

  Returns:
    The exit status.

  Raises:
    InputError: If something does not fit the data, or the run in the directory.
  """
  if (result := finished.text(settings, output)) is not None:
    print(result)
    return 0
  if 'tensorflow' not in sys.modules:  # Its import takes 10 s and more when files are not in memory.
    print('tasks.run: starting TensorFlow', file=sys.stderr, flush=True)
  # What imports TensorFlow, now that the flags are right and there is work to do.
  import tensorflow_federated as tff

  from fedsmp_tff.program import loop
  from tasks.cli import interruption as interruption_lib
  from tasks.training import builders
  from tasks.training import evaluation
  from tasks.training import experiment as experiment_lib
  from tasks.training import plan
  from tasks.training import public_model
  from tasks.training import reporters
  from tasks.training import resuming
  from tasks.training import run_directory

  s, manager = settings, None
  if output.release_manager is not None:
    manager = plugins.call('release_manager', output.release_manager, tff.program.ReleaseManager)
  interruption = interruption_lib.Interruption()
  place_lib.prepare(seeded=s.seed is not None)
  with contextlib.ExitStack() as stack:
    stack.enter_context(interruption.handled())
    stack.enter_context(place_lib.context(place))
    out = run_directory.RunDirectory(output.output_dir or _new_directory(s), output.overwrite)
    stack.enter_context(out)                                   # Keeps other processes out.
    resuming.check_flags(out, s)
    experiment = experiment_lib.Experiment.build(              # Clients 1 ... n, the model, sigma.
        s, builders.make_seeds(s.seed, out.config), place.data_dir
    )
    resuming.check_data(out, experiment)
    for warning in plan.warnings(experiment):
      print(f'tasks.run: {warning}', file=sys.stderr)
    print(plan.text(experiment), flush=True)
    if output.dry_run:
      return 0
    interruption.next_step = f'; the same command with --output_dir={out.path} resumes it.'
    print(f'\noutput: {out.path}\n', flush=True)
    checkpoints = stack.enter_context(resuming.begin(out, experiment, place))
    experiment = public_model.initialized(                     # theta^0, by public data or random.
        experiment, out, began=not checkpoints.empty()
    )
    ledger = resuming.ledger(out, experiment, began=not checkpoints.empty())
    if ledger is not None:
      stack.enter_context(ledger)                              # Each round on disk before it begins.
    metrics = reporters.Metrics(experiment, out.tables, ledger)
    every = reporters.all_of(metrics, experiment, out, manager)
    with interruption.rounds():
      weights, stopped_by = loop.run(                          # For t = 0 ... T - 1:
          experiment.process(),                                #   ClientUpdate, DP-spar, the mean
          experiment.client_data(),
          experiment.spec.sampler(experiment.seeds.sampling),  #   the server samples r clients
          s.rounds,
          evaluation.of_run(experiment),
          every,
          checkpoints=checkpoints,
          ledger=ledger,
          between_rounds=interruption.check,
      )
    weights = experiment.task_weights(weights)
    out.write_weights(weights)
    out.write_summary(metrics.summary())
    print(reporters.summary_text(experiment, metrics.summary(), out.tables.seconds()))
    print(f'output: {out.path}', flush=True)
    if stopped_by is None and (shown := experiment.show(weights)) is not None:
      print(f'\n{shown}', flush=True)
  if stopped_by is not None:
    raise stopped_by
  return 0


def _new_directory(settings: settings_lib.RunSettings) -> str:
  now = time.strftime('%Y%m%d-%H%M%S')
  # Batch jobs that start in the same second keep apart.
  return f'runs/{settings.task}-{settings.algorithm}-{now}-{os.getpid()}'


if __name__ == '__main__':
  command.end(main(sys.argv))
