"""Reads runs from disk for reports, and groups them over seeds."""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import json
import math
import pathlib
from typing import Any, Optional

import numpy as np

from tasks import datasets
from tasks import errors
from tasks import systems
from tasks.cli import options
from tasks.cli import settings
from tasks.training import run_directory
from tasks.training import tables

# Flags that change how a run is measured, or that tables and figures show elsewhere.
NOT_COMPARED = tuple(
    name for name, option in options.options_of(settings.RunSettings).items()
    if not option.in_comparisons
)
_COLUMNS = ('round', 'test_loss', 'test_accuracy', 'uplink_megabytes')
# Names of final values by column; only a task with padding has the last two.
_PERCENTAGES = {
    'final': 'test_accuracy', 'masked': 'test_accuracy_masked', 'counted': 'test_accuracy_counted',
}
# Columns that grow between evaluations too.
_CUMULATIVE = ('epsilon', 'epsilon_paper', 'uplink_megabytes')


@dataclasses.dataclass(frozen=True)
class Run:
  """One run, up to some round.

  Attributes:
    path: Its directory.
    config: The contents of its config.json.
    columns: Columns of metrics.csv, float[rows], in the rows with an accuracy.
    rounds_done: Number of rounds done, evaluated or not.
    rounds: Its length, or the round at which the report cuts it.
    values: Values after the last round by name, NaN where unknown: best, final, masked (without
      padding) and counted (with padding) accuracy in percent, loss, epsilon, epsilon_paper,
      uplink_megabytes. `best` is NaN if evaluations sampled the test set: the maximum of noisy
      evaluations overestimates accuracy.
    seconds: Time of the rounds with their evaluations; None if unknown.
  """

  path: pathlib.Path
  config: dict[str, Any]
  columns: dict[str, np.ndarray]
  rounds_done: int
  rounds: int
  values: dict[str, float]
  seconds: Optional[float]

  @property
  def complete(self) -> bool:
    """Whether all rounds are done."""
    return self.rounds_done >= self.rounds


@dataclasses.dataclass(frozen=True)
class Group:
  """One or more runs that differ only in their seed, in the order of their seeds."""

  runs: tuple[Run, ...]

  @property
  def config(self) -> dict[str, Any]:
    """The shared configuration."""
    return self.runs[0].config

  @property
  def p(self) -> float:
    """k/d."""
    return self.config['num_kept'] / self.config['dim']

  @property
  def noise_multiplier(self) -> Optional[float]:
    """sigma; None without privacy."""
    privacy = self.config['privacy']
    return privacy['noise_multiplier'] if privacy else None

  @property
  def outside_guarantee(self) -> bool:
    """Whether accuracy is an exact function of clients' examples, which no epsilon covers."""
    of_clients = any(run.config.get('test_outside_guarantee') for run in self.runs)
    claims = bool(self.config['privacy']) or not systems.SYSTEMS[self.config['algorithm']].federated
    return of_clients and claims

  @functools.cached_property
  def complete(self) -> Optional['Group']:
    """The complete runs; None if there are none."""
    runs = tuple(run for run in self.runs if run.complete)
    return Group(runs) if runs else None

  def mean_and_std(self, name: str) -> tuple[float, Optional[float]]:
    """Returns mean and sample standard deviation (None for one run) of one of `Run.values`."""
    values = np.array([run.values[name] for run in self.runs])
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None

  def mean(self, name: str) -> float:
    """Returns the mean of one of `Run.values`."""
    return self.mean_and_std(name)[0]

  def curve(self, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the rounds that all runs have evaluated, and a column's mean and std there."""
    rounds = functools.reduce(np.intersect1d, [run.columns['round'] for run in self.runs])
    values = np.stack([
        run.columns[column][np.isin(run.columns['round'], rounds)] for run in self.runs
    ])
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(rounds))
    return rounds, values.mean(axis=0), spread


def find(paths: Iterable[str]) -> list[pathlib.Path]:
  """Lists the directories of runs among and below directories.

  Raises:
    InputError: If a directory has no run.
  """
  directories = []
  for path in map(pathlib.Path, paths):
    is_run = (path / run_directory.CONFIG).exists() or (path / tables.METRICS).exists()
    runs = [path] if is_run else sorted(
        config.parent for config in path.rglob(run_directory.CONFIG)
    )
    if not runs:
      raise errors.InputError(
          f'{path} has no run; name the --output_dir of a run, or a directory of runs.'
      )
    directories += runs
  return list(dict.fromkeys(directories))


def read(directory: pathlib.Path, rounds: Optional[int] = None) -> Optional[Run]:
  """Reads a run.

  Args:
    directory: Its --output_dir.
    rounds: The round at which to cut a longer run.

  Returns:
    The run; None if it has no evaluation yet.

  Raises:
    InputError: If the directory can't be read as a run.
  """
  try:
    config = json.loads((directory / run_directory.CONFIG).read_text(encoding='utf-8'))
    length = min(config['rounds'], rounds or config['rounds'])
    for name in ('flags', 'num_kept', 'dim', 'privacy', 'seed', 'task', 'algorithm', 'sampled'):
      config[name]
    rows, timings = (
        [row for row in tables.Table(directory / name).rows() if int(row['round']) <= length]
        for name in (tables.METRICS, tables.TIMINGS)
    )
    evaluated = [row for row in rows if row['test_accuracy']]
    if not evaluated:
      return None
    columns = {
        name: np.array([float(row[name] or math.nan) for row in evaluated]) for name in _COLUMNS
    }
    rounds_done = int(rows[-1]['round'])
    values = _final_values(evaluated[-1], rows[-1])
    values['best'] = math.nan if config['sampled'] else 100 * float(columns['test_accuracy'].max())
    summary = run_directory.read_json(directory / run_directory.SUMMARY)
    if summary.get('rounds') == rounds_done:
      # The summary includes a round that was abandoned after the last row.
      values |= {name: float(summary[name]) for name in _CUMULATIVE if name in summary}
    seconds = sum(float(row['round_seconds']) + float(row['evaluation_seconds']) for row in timings)
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.InputError(
        f'{directory} can\'t be read as a run ({type(error).__name__}: {error});'
        ' name the --output_dir of a run.'
    ) from None
  return Run(directory, config, columns, rounds_done, length, values, seconds or None)


def _final_values(evaluated: dict[str, str], last: dict[str, str]) -> dict[str, float]:
  """Returns `Run.values` from the last row with an accuracy and the last row."""
  values = {
      name: 100 * float(evaluated.get(column) or math.nan)
      for name, column in _PERCENTAGES.items()
  }
  values['loss'] = float(evaluated['test_loss'] or math.nan)
  return values | {name: float(last.get(name) or math.nan) for name in _CUMULATIVE}


def text(value: Any) -> str:
  """Returns a flag's value as typed."""
  if value is None:
    return 'default'
  return ','.join(map(str, value)) if isinstance(value, list) else str(value)


def group(runs: Sequence[Run]) -> list[Group]:
  """Groups runs with the same flags, by task and then in the order of the first run of each."""
  groups: dict[str, list[Run]] = {}
  for run in runs:
    flags = {name: value for name, value in run.config['flags'].items() if name != 'seed'}
    groups.setdefault(json.dumps([flags, run.rounds], sort_keys=True), []).append(run)
  tasks = [*datasets.TASKS.names, *(run.config['task'] for run in runs)]
  return sorted(
      (
          Group(tuple(sorted(members, key=lambda run: run.config['seed'] or 0)))
          for members in groups.values()
      ),
      key=lambda group: tasks.index(group.config['task']),
  )
