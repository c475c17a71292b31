"""`python -m tasks.run --task=TASK`: trains with Fed-SMP or a baseline, prints the privacy."""

import contextlib
import os
import signal
import sys
from typing import Any

if __name__ == '__main__':
  # While packages are imported, Ctrl-C ends without a traceback.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from fedsmp_tff import _platform

if _platform.problem():
  sys.exit(f'tasks.run: {_platform.problem()}')

# pylint: disable=g-import-not-at-top
from tasks import errors
from tasks.cli import command
from tasks.cli import plugins
from tasks.cli import signals
from tasks.training import finished
from tasks.training import run_directory
from tasks.training import runtime_flags as runtime_flags_lib
from tasks.training import settings as settings_lib
from tasks.training import tables

_NAME = 'tasks.run'


def run(
    settings: settings_lib.RunSettings, runtime_flags: runtime_flags_lib.RuntimeSettings,
    program: str = _NAME,
) -> int:
  """Runs Algorithm 1, or resumes the run in --output_dir; returns the exit status.

  The comments on the right are the lines of the paper.

  Raises:
    InputError: If a flag does not fit the data, or the run in the directory.
  """
  if (result := finished.text(settings, runtime_flags)) is not None:
    print(result)
    return 0
  prepare_tensorflow(program, seeded=settings.seed is not None)
  from fedsmp_tff.program import loop
  from tasks.training import evaluation
  from tasks.training import plan
  from tasks.training import pretraining
  from tasks.training import reporters
  from tasks.training import resuming

  s, stop, manager = settings, signals.Signals(program), _release_manager(runtime_flags)
  path = runtime_flags.output_dir or run_directory.default_path(f'{s.task}-{s.algorithm}')
  with contextlib.ExitStack() as stack:
    stack.enter_context(command.owner_only())
    stack.enter_context(stop.handled())
    stack.enter_context(errors.refusing_unseeded_draws(s.seed))
    stack.enter_context(runtime_flags_lib.context(runtime_flags))
    out = stack.enter_context(run_directory.RunDirectory(path, runtime_flags.overwrite))
    resuming.check_flags(out, s)
    experiment = resuming.build(out, s, runtime_flags.data_dir)         # n clients, k, sigma.
    budget = resuming.budget(out, experiment)
    lost = resuming.lost_rounds(out, experiment)
    print(plan.text(experiment, lost, runtime_flags.verbose), flush=True)
    if runtime_flags.dry_run:
      return 0
    how = f'with --output_dir={out.path}{" and without --overwrite" * out.overwrites}'
    stop.next_step = f'; the same command {how} resumes it.'
    print(f'\noutput: {out.path}\n', flush=True)
    checkpoints = resuming.begin(out, experiment)
    has_begun = checkpoints.rounds_done() is not None
    if has_begun:
      print(plan.resumed_text(experiment, checkpoints.rounds_done(), lost), flush=True)
    experiment = pretraining.initialize(experiment, out, has_begun)   # theta^0.
    ledger = stack.enter_context(resuming.ledger(out, experiment, budget, has_begun))
    metrics = reporters.Metrics(experiment, out, ledger)
    weights, stopped_by = loop.run(                           # For t = 0 ... T - 1:
        experiment.process(),                                 #   ClientUpdate, DP-spar, the mean,
        experiment.client_data(),
        experiment.spec.sampler(experiment.seeds.sampling),   #   of r sampled clients.
        s.rounds,
        evaluation.make_evaluate_fn(experiment),
        reporters.all_of(metrics, experiment, out, manager),
        checkpoints=checkpoints, ledger=ledger, between_rounds=stop.begin_round,
    )
    stop.in_round = False
    weights = experiment.task_weights(weights)
    out.write_weights(weights)
    summary = metrics.summary(finished=stopped_by is None)
    out.write_json(run_directory.SUMMARY, summary)
    results = reporters.summary_text(experiment, summary, tables.seconds(out.timings))
    print(f'{results}\noutput: {out.path}', flush=True)
    if stopped_by is None and (shown := experiment.show(weights)) is not None:
      print(f'\n{shown}', flush=True)
  if stopped_by is not None:
    raise stopped_by
  return 0


def prepare_tensorflow(program: str, seeded: bool) -> None:
  """Says that TensorFlow starts, and has it repeat seeded runs exactly."""
  if 'tensorflow' not in sys.modules:  # The import takes 10 s if its files are not in memory.
    print(f'{program}: starting TensorFlow', file=sys.stderr, flush=True)
  if seeded:
    # Makes two runs of a seed equal, on GPUs too. TensorFlow reads it once: after a run without a
    # seed in this process, a seeded run has another graph, and other last bits, than in a new one.
    os.environ['TF_DETERMINISTIC_OPS'] = '1'


def _release_manager(runtime_flags: runtime_flags_lib.RuntimeSettings) -> Any:
  """Returns the `ReleaseManager` of --release_manager; None without it."""
  if runtime_flags.release_manager is None:
    return None
  import tensorflow_federated as tff

  return plugins.call('release_manager', runtime_flags.release_manager, tff.program.ReleaseManager)


main = command.Command(
    _NAME,
    (
        'usage: python -m tasks.run --task=TASK [flags]',
        '',
        'Trains a model with Fed-SMP or a baseline, prints the plan and the privacy spent, and',
        'writes the run to --output_dir. For example:',
        '  python -m tasks.run --task=shakespeare --p=0.05',
        '  python -m tasks.run --task=fashion_mnist --algorithm=dp_fedavg --seed=1',
        '  python -m tasks.run --flagfile=tasks/experiments/paper/fashion_mnist.flags --p=0.005',
        '',
        'The same command with the same --output_dir resumes a run, however it ended.',
        '--flagfile=FILE reads flags from a file, one per line. A flag that has no effect with the',
        'task or the algorithm is ignored in a file, and mostly an error on the command line.',
    ),
    run,
    new_flags=settings_lib.new_flags,
    parse=settings_lib.parse,
).main


if __name__ == '__main__':
  command.end(main(sys.argv))
