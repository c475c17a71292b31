"""`python -m tasks.sweep --grid=GRID`: the runs of a grid, one after the other, each only once."""

import os

# TensorFlow's notes on its start have nothing about a sweep.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
from collections.abc import Iterable, Iterator, Sequence
import contextlib
import dataclasses
import fcntl
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

_RUN = ('-m', 'tasks.run')
_SECONDS_BETWEEN_LOOKS = 1.0
_LOG_TAIL_BYTES = 4096
# Where a run's lines on how far it is begin: of its rounds, and of the public training before them.
_OF_PROGRESS = ('round ', 'training on ')
_LOCKS, _LOGS = '.locks', 'logs'


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  grid: Optional[str] = options_lib.option(
      None,
      f'What to run: one of {", ".join(grids.names())}, paper/all, or a file of your own (see'
      ' tasks/cli/grids.py): a line of flags of tasks.run for each run, --p={0.1,0.2} for both.',
  )
  sweep_dir: str = options_lib.option(
      'runs/sweep',
      'Directory of the runs, a subdirectory each. Several sweeps may share it concurrently.',
  )
  seeds: int = options_lib.option(
      5, 'How many seeds each run has: 1, 2, ..., SEEDS.', at_least=1
  )
  index: Optional[int] = options_lib.option(
      None,
      'Runs only this one, counted from 0 in the order of --print: the number of a job in an'
      ' array.',
      at_least=0,
  )
  print: bool = options_lib.option(False, 'Prints the command lines, and runs nothing.')
  status: bool = options_lib.option(
      False, 'Prints which runs are done, running, begun or to do, and runs nothing.'
  )
  keep_checkpoints: bool = options_lib.option(
      False,
      'Keeps the checkpoints of finished runs, most of their size. Without them a finished run is'
      ' still recognized as finished; weights, tables and ledgers stay.',
  )
  seconds_per_line: float = options_lib.option(
      60.0, 'Without a terminal, seconds from one line on the progress of a run to the next.',
      above=0,
  )


_COMMAND = command.Command(
    'tasks.sweep',
    (
        'usage: python -m tasks.sweep --grid=paper/fashion_mnist [flags] [-- FLAGS OF EVERY RUN]',
        '',
        'Runs every unfinished configuration of a grid, the headline rows of the paper first. The same',
        'command resumes an interrupted sweep; a run that fails is reported, and the others continue.',
        'Exit status 1 if one has failed. For instance:',
        '  python -m tasks.sweep --grid=paper/svhn --seeds=1 -- --data_dir=DIRECTORY',
    ),
    (Options,),
)


class Sweep:
  """The runs of a grid in a directory, and who is at them.

  A run's lock is held by the sweep that runs it and by the run itself, so that it is let
  go when both have ended, however they did.

  Attributes:
    root: The directory.
    cells: The runs in their order.
  """

  def __init__(self, root: str, cells: Sequence[grids.Cell], extra: Sequence[str]):
    """Checks the flags of every run.

    Args:
      root: The directory.
      cells: The runs.
      extra: Flags that each of them has too.

    Raises:
      InputError: If a flag is unknown, without effect or out of range.
    """
    self.root = pathlib.Path(root)
    self._extra = tuple(extra)
    self.cells = cells
    for cell in map(self._full, cells):
      try:
        cell.settings  # noqa: B018  (made to be checked)
      except errors.InputError as error:
        raise errors.InputError(
            f'the run with {" ".join(cell.flags)}: {error}'
        ) from None

  def directory(self, cell: grids.Cell) -> pathlib.Path:
    """Where a cell's run has its files."""
    return self.root / cell.name

  def command(self, cell: grids.Cell) -> list[str]:
    """The arguments of Python that run a cell."""
    return [*_RUN, *self._full(cell).flags, f'--output_dir={self.directory(cell)}']

  def is_done(self, cell: grids.Cell) -> bool:
    """Whether its run, with these flags, has all of its rounds."""
    full = self._full(cell)
    config = run_directory.read_json(self.directory(cell) / run_directory.CONFIG)
    summary = run_directory.read_json(self.directory(cell) / run_directory.SUMMARY)
    return (
        not finished.differing(config.get('flags', {}), full.identity)
        and summary.get('rounds') == full.settings.rounds
    )

  def status(self, cell: grids.Cell) -> str:
    """Returns 'done', 'running', 'begun' or 'to do'."""
    if self.is_done(cell):
      return 'done'
    # A question writes nothing: without a lock file nobody has been at the cell.
    if (self.root / _LOCKS / cell.name).exists():
      with self.locked(cell) as lock:
        if lock is None:
          return 'running'
    return 'begun' if (self.directory(cell) / run_directory.CONFIG).exists() else 'to do'

  @contextlib.contextmanager
  def locked(self, cell: grids.Cell) -> Iterator[Optional[BinaryIO]]:
    """Keeps others from a cell; None in place of the lock if another is at it."""
    with self._open(pathlib.Path(_LOCKS, cell.name)) as lock:
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
    log = pathlib.Path(_LOGS, f'{cell.name}.log')
    with self._open(log) as output:
      begin = output.tell()
      process = subprocess.Popen(
          [sys.executable, *self.command(cell)],
          stdin=subprocess.DEVNULL,
          stdout=output,
          stderr=output,
          pass_fds=[lock.fileno()],
          # Signals of a terminal reach it through this process, once.
          start_new_session=True,
          preexec_fn=lambda: processes.end_with_parent(signal.SIGTERM),
      )
    return process, _Log(self.root / log, begin)

  def _open(self, path: pathlib.Path) -> BinaryIO:
    """Opens a file below the directory, to append to."""
    with errors.writing_to('sweep_dir', self.root):
      (self.root / path).parent.mkdir(parents=True, exist_ok=True)
      return open(self.root / path, 'ab')

  def _full(self, cell: grids.Cell) -> grids.Cell:
    return grids.Cell.of((*cell.flags, *self._extra))


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status: 1 if a run has failed."""
  extra = []
  if '--' in argv:
    argv, extra = argv[: argv.index('--')], argv[argv.index('--') + 1 :]
  return _COMMAND.main(argv, lambda options: _main(options, extra))


def _main(options: Options, extra: Sequence[str]) -> int:
  if options.grid is None:
    raise errors.InputError(
        f'--grid is not set; set it to a file, or to one of {", ".join(grids.names())}.'
    )
  cells = grids.with_seeds(grids.read(options.grid), range(1, options.seeds + 1))
  if options.index is not None:
    if options.index >= len(cells):
      raise errors.InputError(
          f'--index={options.index} is not one of the {len(cells)} runs, which count from 0;'
          ' lower it.'
      )
    cells = [cells[options.index]]
  sweep = Sweep(options.sweep_dir, cells, extra)
  if options.print:
    return _print(shlex.join(['python', *sweep.command(cell)]) for cell in cells)
  if options.status:
    return _print(
        f'{number:4d} {sweep.status(cell):8s} {cell.name}' for number, cell in enumerate(cells)
    )
  return _run(sweep, options.seconds_per_line, options.keep_checkpoints)


def _print(lines: Iterable[str]) -> int:
  """Prints lines, as far as whoever reads them wants them; returns 0."""
  try:
    for line in lines:
      print(line)
    sys.stdout.flush()
  except BrokenPipeError:  # `head` has seen enough.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return 0


def _run(sweep: Sweep, seconds_per_line: float, keep_checkpoints: bool) -> int:
  """Runs what is not done; returns the exit status."""
  counts = {'done': 0, 'done before': 0, 'running elsewhere': 0}
  failed = {}
  bar = tqdm.tqdm(total=len(sweep.cells), unit='run', dynamic_ncols=True, disable=None)
  with bar, _Signals() as signals:
    for number, cell in enumerate(sweep.cells, 1):
      with sweep.locked(cell) as lock:
        if lock is None:
          counts['running elsewhere'] += 1
        # Looked at behind the lock: another sweep may just have ended it.
        elif sweep.is_done(cell):
          counts['done before'] += 1
        else:
          place = f'[{number}/{len(sweep.cells)}]'
          _say(bar, f'{place} {cell.name}')
          process, log = sweep.start(cell, lock)
          with signals.handed_to(process):
            status = _wait(process, log, bar, place, seconds_per_line)
          if status and signals.number is None:
            failed[cell.name] = log.path
            _say(bar, f'FAILED: {_failure(status, log)}')
          elif not status:
            counts['done'] += 1
            if not keep_checkpoints:
              finished.clean(sweep.directory(cell))
      if signals.number is not None:
        name = signal.Signals(signals.number).name
        _say(bar, f'ended by {name}; the same command resumes it.')
        return 128 + signals.number
      bar.update()
  print(', '.join(f'{count} {what}' for what, count in counts.items() if count or what == 'done'))
  for name, log in failed.items():
    print(f'failed: {name}, see {log}')
  if counts['done'] or counts['done before']:
    print(f'report: python -m tasks.report {sweep.root}')
  return int(bool(failed))


class _Signals:
  """Hands SIGTERM and SIGINT on to the run in flight, which ends in its own way.

  Attributes:
    number: The first signal that came; None if none did.
  """

  def __init__(self):
    self.number = None
    self._child = None
    self._before = {}

  def __enter__(self) -> '_Signals':
    for number in (signal.SIGTERM, signal.SIGINT):
      # A shell's background job has SIGINT ignored, and stays so.
      if signal.getsignal(number) is not signal.SIG_IGN:
        self._before[number] = signal.signal(number, self._hand_on)
    return self

  def __exit__(self, *unused_error) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  @contextlib.contextmanager
  def handed_to(self, child: subprocess.Popen) -> Iterator[None]:
    """In this block, signals go to this process; one that came just before does too."""
    self._child = child
    if self.number is not None:
      child.send_signal(self.number)
    try:
      yield
    finally:
      self._child = None

  def _hand_on(self, number: int, unused_frame) -> None:
    self.number = self.number or number
    if self._child is not None:
      self._child.send_signal(number)


@dataclasses.dataclass(frozen=True)
class _Log:
  """What one process of a run has printed.

  Attributes:
    path: The file, which has what earlier processes printed too.
    begin: Where this process begins.
  """

  path: pathlib.Path
  begin: int

  def last_lines(self) -> list[str]:
    """The last lines that are not empty."""
    with open(self.path, 'rb') as file:
      file.seek(max(self.begin, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
      lines = file.read().decode(errors='replace').splitlines()
    return [line for line in lines if line.strip()]

  def progress(self) -> str:
    """How far the run is, as it prints itself."""
    lines = [line for line in self.last_lines() if line.startswith(_OF_PROGRESS)]
    return lines[-1] if lines else 'starting'


def _wait(
    process: subprocess.Popen, log: _Log, bar: tqdm.tqdm, place: str, seconds_per_line: float
) -> int:
  """Waits for a run, and shows how far it is; returns its exit status.

  Args:
    process: The run.
    log: What it prints.
    bar: Shows its progress on a terminal; else a line does.
    place: Its number among the runs.
    seconds_per_line: Seconds from one such line to the next.
  """
  next_line = time.monotonic() + seconds_per_line
  while True:
    with contextlib.suppress(subprocess.TimeoutExpired):
      return process.wait(min(_SECONDS_BETWEEN_LOOKS, seconds_per_line))
    if not bar.disable:
      bar.set_postfix_str(f'{place} {log.progress()}')
    elif time.monotonic() >= next_line:
      next_line = time.monotonic() + seconds_per_line
      _say(bar, f'{place} {log.progress()}')


def _failure(status: int, log: _Log) -> str:
  """Why a run has failed, in its own last line if it printed one."""
  lines = log.last_lines()
  how = f'killed by {signal.Signals(-status).name}' if status < 0 else f'exit status {status}'
  return f'{how}: {lines[-1] if lines else "no output"}'


def _say(bar: tqdm.tqdm, text: str) -> None:
  if bar.disable:
    print(text, flush=True)
  else:
    bar.write(text)


if __name__ == '__main__':
  sys.exit(main(sys.argv))
