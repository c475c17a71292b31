"""`python -m tasks.sweep --grid=GRID`: the runs of a grid, some at a time, each only once."""

import collections
from collections.abc import Iterator, Sequence
from concurrent import futures
import contextlib
import ctypes
import dataclasses
import math
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import time
from typing import IO, Any, Optional

from tasks import errors
from tasks.cli import command
from tasks.cli import locks
from tasks.cli import options as options_lib
from tasks.experiments import grids
from tasks.experiments import run_search
from tasks.training import finished
from tasks.training import run_directory

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # Looked up here: not between a fork and an exec.
_SECONDS_PER_LOOK = 0.5
# Time between lines on the progress of a run.
_SECONDS_PER_LINE = 60.0


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  grid: Optional[str] = options_lib.option(
      None,
      "Grid: paper/fashion_mnist, paper/shakespeare or paper/svhn for the paper's tables; another"
      ' of tasks/experiments, such as main/fashion_mnist_head; or a file of your own. Each line has'
      ' the flags of tasks.run for one run; with --p={0.1,0.2} it stands for two runs.',
      is_path=True,
  )
  sweep_dir: str = options_lib.option(
      'runs/sweep',
      'Directory of the runs, each of which has a subdirectory. Several sweeps of one grid may'
      ' share it.',
      is_path=True,
  )
  seeds: int = options_lib.option(
      5, 'Number of seeds per line of the grid; seeds are 1 to this number.', at_least=1
  )
  private: bool = options_lib.option(
      False,
      'Run each line once and without a seed, so that its guarantee is valid. tasks.account'
      ' SWEEP_DIR prints the epsilon of all runs together.',
      excludes=('seeds',),
  )
  jobs: int = options_lib.option(1, 'Number of runs at a time.', at_least=1)
  index: Optional[int] = options_lib.option(
      None,
      'Run a single line of --print, the first of which is 0. For arrays of batch jobs.',
      at_least=0,
  )
  print: bool = options_lib.option(False, 'Print the command lines, and run nothing.')
  status: bool = options_lib.option(
      False,
      'Print the state of each run (done, running, begun or to do) and its results. Run nothing.',
  )


def _end_with_parent() -> None:
  """Has the kernel send this process SIGTERM when the process that started it ends; Linux only."""
  _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class _Run:
  """A run of the sweep, and its files.

  Attributes:
    root: The directory of the sweep.
    cell: The run's flags.
  """

  root: pathlib.Path
  cell: grids.Cell

  @property
  def directory(self) -> pathlib.Path:
    """Its --output_dir."""
    return self.root / self.cell.name

  @property
  def log(self) -> pathlib.Path:
    """The file of its output."""
    return self.root / run_search.LOGS / f'{self.cell.name}.log'

  @property
  def command(self) -> list[str]:
    """The arguments of Python that run it."""
    return ['-m', 'tasks.run', *self.cell.flags, f'--output_dir={self.directory}']

  def summary(self) -> dict[str, Any]:
    """Returns summary.json if the run has these flags and all of its rounds; else {}."""
    return finished.summary(self.directory, self.cell.settings)

  def is_done(self) -> bool:
    """Whether the directory has a run with these flags and all of its rounds."""
    return bool(self.summary())

  def result(self) -> str:
    """Returns the results of a run that is done, in a few words; '' for another run."""
    if not (found := self.summary()):
      return ''
    text = f'accuracy {finished.accuracy_text(found, self.cell.settings)}'
    if 'epsilon' in found:
      text += f', epsilon = {float(found["epsilon"]):.4g} ({found["guarantee_status"]})'
    return text

  def status(self) -> str:
    """Returns 'done', 'running', 'begun' or 'to do'; creates no file."""
    if self.is_done():
      return 'done'
    if (self.directory / locks.LOCK).exists():
      with self.locked() as lock:
        if lock is None:
          return 'running'
    return 'begun' if (self.directory / run_directory.CONFIG).exists() else 'to do'

  @contextlib.contextmanager
  def locked(self) -> Iterator[Optional[IO[str]]]:
    """Locks its directory; yields None in place of the lock if another process runs it."""
    with errors.writing_to('sweep_dir', self.root):
      self.directory.mkdir(parents=True, exist_ok=True)
      lock = locks.open_locked(self.directory)
    with lock or contextlib.nullcontext():
      yield lock

  def run(self, lock: IO[str], label: str, signals: Sequence[int]) -> int:
    """Runs it in a process, and prints its progress; returns the exit status.

    Args:
      lock: Its lock, which the process holds as well: it outlives this one if that is killed.
      label: Its number among the runs.
      signals: Signals to forward to the process; the list grows.
    """
    with errors.writing_to('sweep_dir', self.root):
      self.log.parent.mkdir(exist_ok=True)
      output = open(self.log, 'ab')
    with output:
      begin = output.tell()
      process = subprocess.Popen(
          [sys.executable, *self.command],
          stdin=subprocess.DEVNULL,
          stdout=output,
          stderr=output,
          pass_fds=[lock.fileno()],
          env={**os.environ, locks.DESCRIPTOR: str(lock.fileno())},
          # Signals of a terminal reach the run through this process, once.
          start_new_session=True,
          preexec_fn=_end_with_parent,
      )
    num_forwarded, next_time = 0, time.monotonic() + _SECONDS_PER_LINE
    while process.poll() is None:
      for number in signals[num_forwarded:]:
        process.send_signal(number)
        num_forwarded += 1
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS_PER_LOOK)
      if time.monotonic() >= next_time:
        next_time = time.monotonic() + _SECONDS_PER_LINE
        print(f'{label} {self._last_line(begin)}', flush=True)
    status = process.returncode
    if status and not signals:
      ending = f'exit status {status}'
      if status < 0:
        ending = f'killed by {signal.Signals(-status).name}'
      print(f'{label} FAILED: {ending}: {self._last_line(begin)}', flush=True)
    return status

  def _last_line(self, begin: int) -> str:
    """Returns the last line of the log that is not empty, from a position on."""
    lines = self.log.read_bytes()[begin:].decode(errors='replace').splitlines()
    return next((line for line in reversed(lines) if line.strip()), 'no output')


def _main(options: Options, extra: Sequence[str]) -> int:
  """Returns the exit status: 1 if a run has failed."""
  runs = [_Run(pathlib.Path(options.sweep_dir), cell) for cell in _cells(options, extra)]
  if options.print:
    print(*(shlex.join(['python', *run.command]) for run in runs), sep='\n', flush=True)
  elif options.status:
    for number, run in enumerate(runs):
      result = run.result()
      end = f': {result}' if result else ''
      print(f'{number:4d} {run.status():8s} {run.cell.name}{end}', flush=True)
  else:
    with command.owner_only():
      return _run(runs, options)
  return 0


def _cells(options: Options, extra: Sequence[str]) -> list[grids.Cell]:
  """Returns the runs that the options select, in their order, with further flags.

  Raises:
    InputError: If there is no such run, or a flag is wrong.
  """
  if options.grid is None:
    raise errors.InputError(
        f'--grid is not set. Set it to a file, or to one of {", ".join(grids.names())}.'
    )
  for flag in extra:
    if not flag.startswith('--'):
      raise errors.InputError(
          f'{flag} is not a flag. List flags of tasks.run after --, each as --NAME=VALUE.'
      )
    if flag.startswith('--flagfile'):
      raise errors.InputError(
          f'{flag} cannot follow --: a grid names its own flag files. List the flags of this'
          ' file.'
      )
  paragraphs = [
      [grids.Cell.of((*cell.flags, *extra)) for cell in paragraph]
      for paragraph in grids.read(options.grid)
  ]
  seeds = [None] if options.private else range(1, options.seeds + 1)
  cells = grids.with_seeds(paragraphs, seeds)
  if options.index is not None:
    if options.index >= len(cells):
      raise errors.InputError(
          f'--index={options.index} exceeds the {len(cells)} runs, which count from 0. Use'
          f' --index={len(cells) - 1} or less.'
      )
    cells = [cells[options.index]]
  for cell in cells:
    try:
      seed = cell.settings.seed  # Checks the flags.
    except errors.InputError as error:
      raise errors.InputError(f'the run with {" ".join(cell.flags)}: {error}') from None
    if options.private and seed is not None:
      raise errors.InputError(
          f'--private runs without seeds, but the run with {" ".join(cell.flags)} has --seed={seed}.'
          ' Remove that flag, or --private.'
      )
  return cells


def _run(runs: Sequence[_Run], options: Options) -> int:
  """Runs what is not done, `options.jobs` at a time; returns the exit status."""
  minutes = []  # Of each run that this sweep has finished.
  ended = set()

  def run_one(number: int) -> Optional[str]:
    """Returns what became of a run; None if a signal ended it."""
    run, label = runs[number], f'[{number + 1}/{len(runs)}]'
    if signals:
      return None
    with run.locked() as lock:
      if lock is None:
        return 'running elsewhere'
      if run.is_done():  # Checked under the lock: another sweep may have ended the run.
        return 'done before'
      print(f'{label} {run.cell.name}', flush=True)
      begin = time.monotonic()
      status = run.run(lock, label, signals)
      ended.add(number)
      if status:
        return None if signals else 'failed'
    minutes.append((time.monotonic() - begin) / 60)
    finished.clean(run.directory)
    left = sum(i not in ended and not other.is_done() for i, other in enumerate(runs))
    took = f'{minutes[-1]:.1f} min, {run.result()}'
    print(f'{label} {took}; {_left_text(left, minutes, options.jobs)}', flush=True)
    return 'done'

  # Only the main thread receives signals; the threads of runs forward them.
  with _signals() as signals, futures.ThreadPoolExecutor(options.jobs) as pool:
    begun = [pool.submit(run_one, number) for number in range(len(runs))]
    try:
      outcomes = [future.result() for future in begun]
    except BaseException:
      pool.shutdown(wait=False, cancel_futures=True)
      raise
    if signals:
      print(f'ended by {signal.Signals(signals[0]).name}; the same command resumes it.')
      return 128 + signals[0]
  counts = collections.Counter(outcomes)
  others = [what for what in ('done before', 'running elsewhere') if counts[what]]
  print(', '.join(f'{counts[what]} {what}' for what in ('done', *others)))
  failed = [run for run, outcome in zip(runs, outcomes) if outcome == 'failed']
  for run in failed:
    print(f'failed: {run.cell.name}, see {run.log}')
  if counts['done'] or counts['done before']:
    print(f'report: python -m tasks.report {runs[0].root}')
    if options.private:
      print(f'epsilon of all runs together: python -m tasks.account {runs[0].root}')
  return int(bool(failed))


def _left_text(num_left: int, minutes: Sequence[float], jobs: int = 1) -> str:
  """Returns how many runs are left, and about how long they take: as long as others on average."""
  if not num_left:
    return 'no run is left'
  hours, rest = divmod(round(math.ceil(num_left / jobs) * statistics.fmean(minutes)), 60)
  noun = 'run is' if num_left == 1 else 'runs are'
  return f'{num_left} {noun} left, about {f"{hours} h " if hours else ""}{rest} min'


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
  """Collects SIGTERM and SIGINT in a list, for the run, which ends in its own way."""
  received = []
  with contextlib.ExitStack() as stack:
    for number in (signal.SIGTERM, signal.SIGINT):
      # A shell's background job ignores SIGINT, and still does here.
      if signal.getsignal(number) is not signal.SIG_IGN:
        before = signal.signal(number, lambda number, _: received.append(number))
        stack.callback(signal.signal, number, before)
    yield received


main = command.Command(
    'tasks.sweep',
    (
        'usage: python -m tasks.sweep --grid=paper/fashion_mnist [flags] [-- FLAGS OF EVERY RUN]',
        '',
        'Makes the runs of a grid that are not finished, the paper\'s headline rows first. The',
        'same command resumes a sweep that was interrupted. If a run fails, the sweep reports it',
        'and goes on, and has exit status 1 in the end. It removes the checkpoints of finished',
        'runs. For example:',
        '  python -m tasks.sweep --grid=paper/svhn --seeds=1 -- --data_dir=DIRECTORY',
        '  python -m tasks.sweep --grid=my.grid --private --sweep_dir=runs/private --jobs=2',
    ),
    _main,
    (Options,),
    parse=command.parse_with_arguments,
).main


if __name__ == '__main__':
  sys.exit(main(sys.argv))
