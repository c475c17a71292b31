"""`python -m tasks.runs`: lists runs, compares two, and removes checkpoints of finished runs."""

from collections.abc import Sequence
import dataclasses
import pathlib
import sys
from typing import Any, Optional

from tasks import errors
from tasks.config import command
from tasks.config import options as options_lib
from tasks.reporting import results
from tasks.training import finished
from tasks.training import run_directory
from tasks.training import run_tables
from tasks.training import tables

_DIRECTORY = 'runs'
_FINISHED, _RUNNING, _BEGUN = 'finished', 'running', 'begun'


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  compare: bool = options_lib.option(
      False, 'Prints the flags in which two runs differ, and their results side by side.'
  )
  clean: bool = options_lib.option(
      False,
      'Removes the checkpoints of finished runs, which are most of their size; weights, tables and'
      ' ledgers stay. A cleaned run is still recognized as finished.',
  )


_COMMAND = command.Command(
    'tasks.runs',
    (
        'usage: python -m tasks.runs [DIRECTORIES...] [flags]',
        '',
        'Lists the runs in and below the directories (default: runs) with task, system, epsilon for',
        'the clients in the data, last measured accuracy, rounds, state and size. For instance:',
        '  python -m tasks.runs runs/sweep',
        '  python -m tasks.runs --compare runs/A runs/B',
        '  python -m tasks.runs --clean runs/sweep',
    ),
    (Options,),
    parse=command.parse_with_arguments,
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  return _COMMAND.main(argv, _main)


def _main(options: Options, directories: list[str]) -> None:
  runs = [Entry.read(path) for path in results.find(directories or [_DIRECTORY])]
  if options.compare:
    if len(runs) != 2:
      raise errors.InputError(f'--compare takes two runs, and found {len(runs)}; name two.')
    print('\n'.join(_comparison(*runs)))
    return
  if options.clean:
    done = [run for run in runs if run.state == _FINISHED]
    freed = sum(finished.clean(run.path) for run in done)
    print(f'removed the checkpoints of {len(done)} finished runs: {_megabytes(freed)} MB')
    return
  print('\n'.join(_table([_HEADER, *map(_row, runs)])))


@dataclasses.dataclass(frozen=True)
class Entry:
  """A run on disk.

  Attributes:
    path: Its directory.
    config: The contents of its config.json.
    summary: The contents of its summary.json; empty before its end.
    rounds_done: The rounds in its table.
    accuracy: The last accuracy that was measured; None if there is none.
    epsilon: Epsilon for the clients in the data after these rounds; None without privacy, and
      before the first row.
    state: 'finished', 'running' or 'begun'.
    size: Bytes of all its files.
  """

  path: pathlib.Path
  config: dict[str, Any]
  summary: dict[str, Any]
  rounds_done: int
  accuracy: Optional[float]
  epsilon: Optional[float]
  state: str
  size: int

  @classmethod
  def read(cls, path: pathlib.Path) -> 'Entry':
    """The run in a directory."""
    config = run_directory.read_json(path / run_directory.CONFIG)
    summary = run_directory.read_json(path / run_directory.SUMMARY)
    rows = list(tables.Table(path / run_tables.METRICS).rows())
    measured = [row['test_accuracy'] for row in rows if row.get('test_accuracy')]
    state = _BEGUN
    if run_directory.in_use(path):
      state = _RUNNING
    elif summary and summary.get('rounds') == config.get('rounds'):
      state = _FINISHED
    return cls(
        path, config, summary,
        int(rows[-1]['round']) if rows else 0,
        float(measured[-1]) if measured else None,
        float(rows[-1]['epsilon']) if rows and rows[-1].get('epsilon') else None,
        state,
        finished.size_of(path),
    )


_HEADER = ('run', 'task', 'system', 'p', 'epsilon', 'accuracy, %', 'rounds', 'state', 'MB')


def _row(run: Entry) -> tuple[str, ...]:
  config = run.config
  ratio = config['num_kept'] / config['dim'] if 'num_kept' in config else None
  return (
      str(run.path), config.get('task', '?'), config.get('algorithm', '?'),
      '' if ratio in (None, 1) else f'{ratio:.3g}',
      '' if run.epsilon is None else f'{run.epsilon:.4g}',
      '' if run.accuracy is None else f'{100 * run.accuracy:.2f}',
      f'{run.rounds_done} of {config.get("rounds", "?")}', run.state, _megabytes(run.size),
  )


def _comparison(one: Entry, other: Entry) -> list[str]:
  """Lines that put two runs side by side."""
  flags = [run.config.get('flags', {}) for run in (one, other)]
  names = [n for n in {**flags[0], **flags[1]} if flags[0].get(n) != flags[1].get(n)]
  lines = [('', str(one.path), str(other.path))]
  lines += [
      (title, left, right)
      for title, left, right in zip(_HEADER[1:], _row(one)[1:], _row(other)[1:])
  ]
  lines += [(f'--{name}', *(str(values.get(name)) for values in flags)) for name in sorted(names)]
  records = [run.config.get('record', {}) for run in (one, other)]
  for name in ('fedsmp_tff', 'git_commit', 'processors', 'seconds'):
    if records[0].get(name) != records[1].get(name):
      lines.append((name, *(str(record.get(name)) for record in records)))
  return _table(lines)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
  """Rows as lines of aligned columns."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return [
      '  '.join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows
  ]


def _megabytes(size: int) -> str:
  return f'{size / 1e6:.1f}'


if __name__ == '__main__':
  sys.exit(main(sys.argv))
