"""Defines the options on where a run reads, computes and writes, and sets its TFF context."""

from collections.abc import Iterator
import contextlib
import dataclasses
import subprocess
from typing import Optional

from fedsmp_tff import errors as library_errors
from tasks import errors
from tasks.cli import options

_GROUP = 'Runtime'
# A shell's program: its child says a sentence unless a line arrives before its input ends. Not the
# shell itself: Ray's C++ can kill the direct children of the process that it ends.
_WATCH = '(read -r _ || echo "$0" >&2); exit'
_ENDED = (
    'This process was ended at once, by a kill or by Ray, which does so if a process of its cluster'
    ' on this machine fails. Start the cluster again if it is gone; the same command with the same'
    ' --output_dir resumes a run.'
)


@dataclasses.dataclass(frozen=True)
class RuntimeSettings:
  """Sets the location of the data, the runtime, and the directory of a run's files."""

  data_dir: Optional[str] = options.option(
      None,
      'Directory of the data. fashion_mnist: the four IDX files *-ubyte.gz (default: those of the'
      ' Debian package dataset-fashion-mnist). svhn: train_32x32.mat, extra_32x32.mat and'
      ' test_32x32.mat. emnist, and shakespeare with --shakespeare_data=tff: a cache of .sqlite'
      ' files, which are downloaded if they are missing (default: ~/.tff).',
      group=_GROUP, is_path=True,
  )
  runtime: str = options.option(
      'local',
      'Where clients run. local: in threads of this process, on CPUs or GPUs. ray: on a Ray'
      ' cluster.',
      group=_GROUP, values=['local', 'ray'],
  )
  devices: Optional[list[str]] = options.option(
      None, 'TensorFlow devices, such as GPU:0,GPU:1 (default: all GPUs, or else the CPU).',
      group=_GROUP, requires=options.when('runtime', 'local'),
  )
  workers: Optional[int] = options.option(
      None, 'Number of clients that run concurrently (default: one per GPU, or else per CPU core).',
      group=_GROUP, at_least=1,
  )
  ray_address: Optional[str] = options.option(
      None,
      'Address of the Ray cluster; auto for the one that runs on this machine (default: a new'
      ' cluster on this machine, for this run).',
      group=_GROUP, requires=options.when('runtime', 'ray'),
  )
  client_timeout: float = options.option(
      600.0,
      'Time limit for a client, in seconds. Then the run ends the worker, and the client runs'
      ' elsewhere.',
      group=_GROUP, above=0, requires=options.when('runtime', 'ray'),
  )
  output_dir: Optional[str] = options.option(
      None,
      "Directory of the run's files, from which the same command resumes it (default:"
      ' runs/TASK-ALGORITHM-TIME-PROCESS, or with tasks.tune runs/TASK-tuned-TIME-PROCESS).',
      group='Output', common=True, is_path=True,
  )
  overwrite: bool = options.option(
      False, 'Remove the run in --output_dir and start over. Its privacy ledger is kept.',
      group='Output', common=True,
  )
  dry_run: bool = options.option(
      False, 'Print the whole plan with its epsilon, and end without writing files.',
      group='Output', common=True,
  )
  verbose: bool = options.option(
      False, 'Print the whole plan before the run, not only its first lines.', group='Output',
      default_fn=lambda values: values['dry_run'],
  )
  release_manager: Optional[str] = options.option(
      None,
      'MODULE:FUNCTION that returns a tff.program.ReleaseManager, for MLflow, W&B and the like. The'
      ' manager receives each row of metrics.csv, with the round as the key (default: none).',
      group='Output',
  )


@contextlib.contextmanager
def context(settings: RuntimeSettings) -> Iterator[None]:
  """Runs the computations of its block where the settings say; raises `InputError` if it can't."""
  from fedsmp_tff import runtime  # pylint: disable=g-import-not-at-top

  if settings.runtime == 'ray':
    tff_context = runtime.ray_context(
        settings.ray_address, settings.workers, client_timeout=settings.client_timeout
    )
  else:
    tff_context = runtime.local_context(settings.devices, settings.workers)
  with contextlib.ExitStack() as stack:
    if settings.runtime == 'ray':
      stack.enter_context(_watched())  # Ray can end this process in its own start and end too.
    try:
      stack.enter_context(tff_context)
    except library_errors.Error:
      raise
    except (ImportError, OSError, RuntimeError, ValueError) as error:
      reason = ' '.join(str(error).split()).rstrip('.') or type(error).__name__
      text = f'--runtime={settings.runtime}: {reason}.'
      if isinstance(error, ImportError):
        text += ' Install Ray, as in docs/aggregator.md.'
      elif settings.ray_address is not None and not isinstance(error, RuntimeError):
        text = (
            f'--ray_address={settings.ray_address}: {reason}. Start the cluster with'
            ' `ray start --head`, or remove the flag.'
        )
      elif isinstance(error, OSError) and settings.runtime == 'ray':
        text += ' Set TMPDIR (or RAY_TMPDIR) to a directory that can be written, for Ray\'s files.'
      raise errors.InputError(text) from None
    yield


@contextlib.contextmanager
def _watched() -> Iterator[None]:
  """Has a shell say that this process has ended in its block: Ray's C++ ends it without a word."""
  shell = subprocess.Popen(
      ['sh', '-c', _WATCH, _ENDED], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
      start_new_session=True,  # Ctrl-C is for this process.
  )
  try:
    yield
  finally:
    shell.communicate(b'\n')
