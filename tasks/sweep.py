"""`python -m tasks.sweep --grid=GRID`: the runs of a grid, one after the other, each only once."""

import os

# TensorFlow's notes on its start do not concern a sweep.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import fcntl
import functools
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from typing import BinaryIO, Optional

import tqdm

from fedsmp_tff.runtime import processes
from tasks import errors
from tasks.cli import command
from tasks.cli import grids
from tasks.cli import options as options_lib
from tasks.training import finished
from tasks.training import run_directory

_SECONDS_PER_LOOK = 0.5
_LOG_TAIL_BYTES = 4096
# First words of the lines in which a run prints its progress.
_PROGRESS_PREFIXES = ('round ', 'pre-training: ')
_LOCKS, _LOGS = '.locks', 'logs'


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  grid: Optional[str] = options_lib.option(
      None,
      f'Grid: one of {", ".join(grids.names())}, paper/all, or a file of your own (see'
      ' tasks/cli/grids.py): a line of flags of tasks.run per run, --p={0.1,0.2} for two runs.',
  )
  sweep_dir: str = options_lib.option(
      'runs/sweep',
      'Directory of the runs, a subdirectory each. Several sweeps may share it concurrently.',
  )
  seeds: int = options_lib.option(
      5, 'Number of seeds per configuration; seeds are 1 to SEEDS.', at_least=1
  )
  index: Optional[int] = options_lib.option(
      None,
      'Run only this configuration, by its 0-based position in --print. Use with job arrays.',
      at_least=0,
  )
  print: bool = options_lib.option(False, 'Print the command lines, and run nothing.')
  status: bool = options_lib.option(
      False, 'Print which runs are done, running, begun or to do, and run nothing.'
  )
  keep_checkpoints: bool = options_lib.option(
      False,
      'Keep the checkpoints of finished runs, most of their size. Without them a finished run is'
      ' still recognized as finished; weights, tables and ledgers stay.',
  )
  seconds_per_line: float = options_lib.option(
      60.0, 'Without a terminal, seconds between lines on the progress of a run.', above=0
  )


_COMMAND = command.Command(
    'tasks.sweep',
    (
        'usage: python -m tasks.sweep --grid=paper/fashion_mnist [flags] [-- FLAGS OF EVERY RUN]',
        '',
        'Runs every unfinished configuration of a grid, the paper\'s headline rows first. The same',
        'command resumes an interrupted sweep; a run that fails is reported, and the others',
        'continue. Exit status 1 if one has failed. For instance:',
        '  python -m tasks.sweep --grid=paper/svhn --seeds=1 -- --data_dir=DIRECTORY',
    ),
    (Options,),
)


class Sweep:
  """The files of runs below one directory.

  A run's lock is held by the sweep that runs it and by the run itself, so that it is released
  when both have ended, however they did.

  Attributes:
    root: The directory.
  """

  def __init__(self, root: str, extra: Sequence[str]):
    """Initializes.

    Args:
      root: The directory.
      extra: Flags of every run, besides those of its cell.
    """
    self.root = pathlib.Path(root)
    self._extra = tuple(extra)

  def directory(self, cell: grids.Cell) -> pathlib.Path:
    """Returns the --output_dir of a cell's run."""
    return self.root / cell.name

  def full(self, cell: grids.Cell) -> grids.Cell:
    """Returns a cell with the flags of every run."""
    return grids.Cell.of((*cell.flags, *self._extra))

  def command(self, cell: grids.Cell) -> list[str]:
    """Returns the arguments of Python that run a cell."""
    return ['-m', 'tasks.run', *self.full(cell).flags, f'--output_dir={self.directory(cell)}']

  def is_done(self, cell: grids.Cell) -> bool:
    """Whether a cell's run, with these flags, has all of its rounds."""
    return bool(finished.summary(self.directory(cell), self.full(cell).settings))

  def status(self, cell: grids.Cell) -> str:
    """Returns 'done', 'running', 'begun' or 'to do'; creates no file."""
    if self.is_done(cell):
      return 'done'
    if (self.root / _LOCKS / cell.name).exists():
      with self.locked(cell) as lock:
        if lock is None:
          return 'running'
    return 'begun' if (self.directory(cell) / run_directory.CONFIG).exists() else 'to do'

  @contextlib.contextmanager
  def locked(self, cell: grids.Cell) -> Iterator[Optional[BinaryIO]]:
    """Locks a cell; yields None in place of the lock if another sweep runs the cell."""
    with self._open(_LOCKS, cell.name) as lock:
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        yield None
        return
      except OSError as error:
        print(
            f'tasks.sweep: {self.root} can\'t be locked ({error.strerror}): see to it that'
            ' no other sweep uses it.',
            file=sys.stderr,
        )
      yield lock

  def start(self, cell: grids.Cell, lock: BinaryIO) -> tuple[subprocess.Popen, '_Log']:
    """Starts a cell's run; returns its process and its log."""
    with self._open(_LOGS, f'{cell.name}.log') as output:
      log = _Log(pathlib.Path(output.name), output.tell())
      process = subprocess.Popen(
          [sys.executable, *self.command(cell)],
          stdin=subprocess.DEVNULL,
          stdout=output,
          stderr=output,
          pass_fds=[lock.fileno()],
          # Signals of a terminal reach the run through this process, once.
          start_new_session=True,
          preexec_fn=lambda: processes.end_with_parent(signal.SIGTERM),
      )
    return process, log

  def _open(self, *path: str) -> BinaryIO:
    """Opens a file below the directory to append to."""
    file = self.root.joinpath(*path)
    with errors.writing_to('sweep_dir', self.root):
      file.parent.mkdir(parents=True, exist_ok=True)
      return open(file, 'ab')


@dataclasses.dataclass(frozen=True)
class _Log:
  """The output of one process of a run: a file, and the position where the process began."""

  path: pathlib.Path
  begin: int

  def last_lines(self) -> list[str]:
    """Returns the last lines that are not empty."""
    with open(self.path, 'rb') as file:
      file.seek(max(self.begin, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
      lines = file.read().decode(errors='replace').splitlines()
    return [line for line in lines if line.strip()]

  def progress(self) -> str:
    """Returns the run's last line on its progress."""
    lines = [line for line in self.last_lines() if line.startswith(_PROGRESS_PREFIXES)]
    return lines[-1] if lines else 'starting'

  def failure(self, status: int) -> str:
    """Returns the reason for an exit status: the run's last line."""
    ending = f'killed by {signal.Signals(-status).name}' if status < 0 else f'exit status {status}'
    return f'{ending}: {(self.last_lines() or ["no output"])[-1]}'


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status: 1 if a run has failed."""
  extra = []
  if '--' in argv:
    argv, extra = argv[: argv.index('--')], argv[argv.index('--') + 1 :]
  return _COMMAND.main(argv, lambda options: _main(options, extra))


def _main(options: Options, extra: Sequence[str]) -> int:
  sweep, cells = Sweep(options.sweep_dir, extra), _cells(options)
  for cell in map(sweep.full, cells):
    try:
      cell.settings  # noqa: B018  (checks the flags)
    except errors.InputError as error:
      raise errors.InputError(f'the run with {" ".join(cell.flags)}: {error}') from None
  if options.print:
    print(*(shlex.join(['python', *sweep.command(c)]) for c in cells), sep='\n', flush=True)
  elif options.status:
    lines = (f'{i:4d} {sweep.status(cell):8s} {cell.name}' for i, cell in enumerate(cells))
    print(*lines, sep='\n', flush=True)
  else:
    return _run(sweep, cells, options)
  return 0


def _cells(options: Options) -> list[grids.Cell]:
  """Returns the runs that the options select, in their order."""
  if options.grid is None:
    raise errors.InputError(
        f'--grid is not set; set it to a file, or to one of {", ".join(grids.names())}.'
    )
  cells = grids.with_seeds(grids.read(options.grid), range(1, options.seeds + 1))
  if options.index is None:
    return cells
  if options.index >= len(cells):
    raise errors.InputError(
        f'--index={options.index} is not one of the {len(cells)} runs, which count from 0;'
        ' lower it.'
    )
  return [cells[options.index]]


def _run(sweep: Sweep, cells: Sequence[grids.Cell], options: Options) -> int:
  """Runs the cells that are not done; returns the exit status."""
  counts, failed = {'done': 0, 'done before': 0, 'running elsewhere': 0}, {}
  bar = tqdm.tqdm(total=len(cells), unit='run', dynamic_ncols=True, disable=None)
  if bar.disable:  # No terminal.
    say = show = functools.partial(print, flush=True)
    seconds = options.seconds_per_line
  else:
    say, show, seconds = bar.write, bar.set_postfix_str, 0.0
  with bar, _signals() as signals:
    for number, cell in enumerate(cells, 1):
      with sweep.locked(cell) as lock:
        if lock is None:
          counts['running elsewhere'] += 1
        elif sweep.is_done(cell):  # Checked under the lock: another sweep may have ended the run.
          counts['done before'] += 1
        else:
          place = f'[{number}/{len(cells)}]'
          say(f'{place} {cell.name}')
          process, log = sweep.start(cell, lock)
          status = _wait(process, log, place, signals, show, seconds)
          if not status:
            counts['done'] += 1
            if not options.keep_checkpoints:
              finished.clean(sweep.directory(cell))
          elif not signals:
            failed[cell.name] = log.path
            say(f'FAILED: {log.failure(status)}')
      if signals:
        say(f'ended by {signal.Signals(signals[0]).name}; the same command resumes it.')
        return 128 + signals[0]
      bar.update()
  print(', '.join(f'{num} {what}' for what, num in counts.items() if num or what == 'done'))
  for name, path in failed.items():
    print(f'failed: {name}, see {path}')
  if counts['done'] or counts['done before']:
    print(f'report: python -m tasks.report {sweep.root}')
  return int(bool(failed))


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
  """Collects SIGTERM and SIGINT in a list, for the run, which ends in its own way."""
  received, previous = [], {}
  for number in (signal.SIGTERM, signal.SIGINT):
    # A shell's background job ignores SIGINT, and still does here.
    if signal.getsignal(number) is not signal.SIG_IGN:
      previous[number] = signal.signal(number, lambda number, _: received.append(number))
  try:
    yield received
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)


def _wait(
    process: subprocess.Popen, log: _Log, place: str, signals: Sequence[int],
    show: Callable[[str], None], seconds: float,
) -> int:
  """Waits for a run; returns its exit status.

  Args:
    process: The run.
    log: Its output.
    place: Its number among the runs.
    signals: Signals to forward to the run; the list grows.
    show: Shows a line on progress.
    seconds: The least number of seconds between lines.
  """
  num_forwarded, next_time = 0, time.monotonic() + seconds
  while True:
    for number in signals[num_forwarded:]:
      process.send_signal(number)
      num_forwarded += 1
    with contextlib.suppress(subprocess.TimeoutExpired):
      return process.wait(_SECONDS_PER_LOOK)
    if time.monotonic() >= next_time:
      next_time = time.monotonic() + seconds
      show(f'{place} {log.progress()}')


if __name__ == '__main__':
  sys.exit(main(sys.argv))
