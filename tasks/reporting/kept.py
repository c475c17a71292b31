"""Kept reports: what a report needs of its runs, in two small files that outlive the runs."""

from collections.abc import Iterable, Sequence
import csv
import dataclasses
import json
import math
import pathlib
from typing import Any

from fedsmp_tff import errors as library_errors
from tasks import errors
from tasks.experiments import run_search
from tasks.reporting import results
from tasks.training import run_directory
from tasks.training import tables

CURVES, RUNS = 'curves.csv', 'runs.json'
# The columns of `CURVES`, after the name of the run, in the order of `results.COLUMNS`.
_COLUMNS = ('round', 'accuracy', 'loss', 'epsilon', 'uplink_megabytes')
_KINDS = {
    'name': (str,), 'config': (dict,), 'rounds_done': (int,), 'evaluations': (int,),
    'last': (dict,), 'seconds': (int, float),
}


def read_all(paths: Iterable[str]) -> list[results.Run]:
  """Reads the runs among and below directories: directories of runs, and kept reports.

  A run that is there twice, such as in a kept report too, counts once, with most of its rounds.
  Names that several runs share get numbers. Runs that have no evaluation yet are left out.

  Raises:
    InputError: If a directory has no run, or one can't be read.
  """
  found = []
  for directory in find(paths):
    if _is_kept(directory):
      found += _read(directory)
    if _is_run(directory) and (run := results.read(directory)) is not None:
      found.append(run)
  return _name_apart(_unite(found))


def find(paths: Iterable[str]) -> list[pathlib.Path]:
  """Lists the directories of runs, and of kept reports, among and below directories.

  Raises:
    InputError: If a directory has neither.
  """
  directories = []
  for path in paths:
    found = map(pathlib.Path, run_search.run_dirs([path], (run_directory.CONFIG, RUNS)))
    below = [directory for directory in found if _is_run(directory) or _is_kept(directory)]
    if not below:
      raise errors.InputError(
          f'{path} has no run. Name the --output_dir of a run, a directory of runs, or a report'
          f' with {CURVES} and {RUNS}.'
      )
    directories += below
  return list(dict.fromkeys(directories))


def write(output: pathlib.Path, runs: Sequence[results.Run]) -> None:
  """Writes what `read_all` needs to return the same runs, without paths, dates or commands."""
  records = []
  with open(output / CURVES, 'w', encoding='utf-8', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(['run', *_COLUMNS])
    for run in runs:
      # Python's floats are written with all their digits.
      columns = [run.columns[name].tolist() for name in results.COLUMNS]
      for round_num, *values in zip(*columns):
        writer.writerow([run.name, int(round_num), *('' if math.isnan(v) else v for v in values)])
      records.append({
          'name': run.name, 'rounds_done': run.rounds_done, 'evaluations': len(columns[0]),
          'seconds': run.seconds, 'last': _finite_or_text(run), 'config': run.config,
      })
  # A line per run: a change of one shows as one line.
  lines = ',\n'.join(map(json.dumps, records))
  (output / RUNS).write_text(f'[\n{lines}\n]\n', encoding='utf-8')


def _finite_or_text(run: results.Run) -> dict[str, Any]:
  """Returns the values of `results.LAST` that are known; JSON has no infinity: it is a text."""
  known = {name: float(v) for name in results.LAST if not math.isnan(v := run.values[name])}
  return {name: v if math.isfinite(v) else str(v) for name, v in known.items()}


def _read(directory: pathlib.Path) -> list[results.Run]:
  """Reads the runs of a kept report, which may be somebody else's."""
  try:
    records, rows = run_directory.parse(directory / RUNS), {}
    for row in tables.parse((directory / CURVES).read_bytes()):
      rows.setdefault(row['run'], []).append(row)
    if not isinstance(records, list):
      raise ValueError(f'{RUNS} must be a list')
    runs = [_make_run(record, rows) for record in records]
    if rows:
      raise ValueError(f'{CURVES} has runs that {RUNS} has not, such as {[*rows][0]!r:.60}')
    return runs
  except results.UNREADABLE as error:
    raise errors.InputError(
        f'{directory} can\'t be read as a kept report ({type(error).__name__}: {error}). Restore its'
        f' {CURVES} and {RUNS}, or name directories of runs.'
    ) from None


def _make_run(record: Any, rows: dict[str, list[dict[str, str]]]) -> results.Run:
  """Returns the run of an item of `RUNS`, and removes its rows."""
  library_errors.check_fields(record, _KINDS)
  run_directory.check_config(record['config'])
  own = rows.pop(record['name'], [])
  if len(own) != record['evaluations']:
    raise ValueError(
        f'{CURVES} has {len(own)} evaluations of {record["name"]!r:.60}, not {record["evaluations"]}'
    )
  return results.make_run(
      record['name'], record['config'], [[row[name] for row in own] for name in _COLUMNS],
      record['rounds_done'], {name: float(value) for name, value in record['last'].items()},
      record['seconds'],
  )


def _is_run(path: pathlib.Path) -> bool:
  return (path / run_directory.CONFIG).exists() or (path / tables.METRICS).exists()


def _is_kept(path: pathlib.Path) -> bool:
  return (path / RUNS).exists() and (path / CURVES).exists()


def _unite(runs: Iterable[results.Run]) -> list[results.Run]:
  """Returns each run once, in the order of its first record, with the record of most rounds."""
  united: list[results.Run] = []
  for run in runs:
    for i, other in enumerate(united):
      if other.continues(run):
        break
      if run.continues(other):
        united[i] = run
        break
    else:
      united.append(run)
  return united


def _name_apart(runs: Iterable[results.Run]) -> list[results.Run]:
  """Returns the runs with different names: the second of a name, X, becomes 'X (2)'."""
  names: set[str] = set()
  named = []
  for run in runs:
    name, number = run.name, 2
    while name in names:
      name, number = f'{run.name} ({number})', number + 1
    names.add(name)
    named.append(dataclasses.replace(run, name=name))
  return named
