"""Reads finished and unfinished runs from disk for reports, and groups them over seeds."""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import json
import math
import pathlib
from typing import Any, Optional

import numpy as np

from tasks import errors
from tasks import systems
from tasks.cli import options
from tasks.cli import settings
from tasks.training import run_directory
from tasks.training import tables

CONFIG, METRICS = 'config.json', 'metrics.csv'
# What a run's metrics are read for; the others are not in every run.
_ALWAYS = ('round', 'test_loss', 'test_accuracy', 'uplink_megabytes')
# Flags that change how a run is measured, or that tables and figures have places for.
NOT_COMPARED = tuple(
    name for name, option in options.options_of(settings.RunSettings).items()
    if not option.in_comparisons
)
# Of a task whose examples are padded: accuracy without padding, and with it.
PADDING = ('test_accuracy_masked', 'test_accuracy_counted')
_EPSILONS = ('epsilon', 'epsilon_paper')
# What a run that was interrupted has spent and sent since the last measurement too.
_AT_END = (*_EPSILONS, 'uplink_megabytes')


@dataclasses.dataclass(frozen=True)
class Run:
  """One run, up to some round.

  Attributes:
    path: Its directory.
    config: The contents of its config.json.
    columns: Columns of metrics.csv, float[rows], in the rows where accuracy is measured.
    rounds_done: The rounds that it has, measured or not.
    at_end: What it has spent and sent after them, by column; without what is not known.
    rounds: Its length, or the round at which it is cut for this report.
    seconds: What its rounds took until there, measurements of accuracy included; None if
      that is not known.
  """

  path: pathlib.Path
  config: dict[str, Any]
  columns: dict[str, np.ndarray]
  rounds_done: int
  at_end: dict[str, float]
  rounds: int
  seconds: Optional[float]

  @property
  def complete(self) -> bool:
    """Whether it has all of these rounds."""
    return self.rounds_done >= self.rounds

  @property
  def best(self) -> float:
    """The best accuracy over rounds, in percent; NaN if it was measured on samples of the test set.

    Among samples the best is the luckiest.
    """
    return math.nan if self.sampled else 100 * float(self.columns['test_accuracy'].max())

  @property
  def sampled(self) -> bool:
    """Whether accuracies before the last round are of samples of the test set."""
    return self.config['sampled']

  @property
  def final(self) -> float:
    """The last accuracy, in percent."""
    return 100 * float(self.columns['test_accuracy'][-1])

  @property
  def masked(self) -> float:
    """The last accuracy without padding, in percent; NaN of a task without any."""
    return 100 * (self.last(PADDING[0]) or math.nan)

  @property
  def counted(self) -> float:
    """The last accuracy with padding as a label, in percent; NaN of a task without any."""
    return 100 * (self.last(PADDING[1]) or math.nan)

  @property
  def final_loss(self) -> float:
    return float(self.columns['test_loss'][-1])

  def last(self, column: str) -> Optional[float]:
    """A column's value after the last round; None if that is not known, or it has no such column.

    An accuracy is the last one that was measured.
    """
    if column in _AT_END:
      return self.at_end.get(column)
    return float(self.columns[column][-1]) if column in self.columns else None


@dataclasses.dataclass(frozen=True)
class Group:
  """Runs that differ in nothing but their seed.

  Attributes:
    runs: One or more, in the order of their seeds.
  """

  runs: tuple[Run, ...]

  @property
  def config(self) -> dict[str, Any]:
    """The configuration that they share."""
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
    """Whether an epsilon, 0 too, leaves out that accuracy is an exact function of clients' examples."""
    of_clients = any(run.config.get('test_outside_guarantee') for run in self.runs)
    claims = bool(self.config['privacy']) or not systems.SYSTEMS[self.config['algorithm']].federated
    return of_clients and claims

  @functools.cached_property
  def complete(self) -> Optional['Group']:
    """The runs that have all rounds; None if there is none."""
    runs = tuple(run for run in self.runs if run.complete)
    return Group(runs) if runs else None

  def mean_and_std(self, name: str) -> tuple[float, Optional[float]]:
    """Mean and sample standard deviation (None for one run) of an attribute of runs."""
    values = np.array([getattr(run, name) for run in self.runs])
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None

  def last(self, column: str) -> Optional[float]:
    """As `Run.last`: the mean over runs."""
    values = [run.last(column) for run in self.runs]
    return None if None in values else float(np.mean(values))

  def curve(self, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A column over rounds: rounds, and mean and standard deviation over runs there.

    Only rounds that all runs have measured count.
    """
    rounds = functools.reduce(
        np.intersect1d, [run.columns['round'] for run in self.runs]
    )
    values = np.stack([
        run.columns[column][np.isin(run.columns['round'], rounds)] for run in self.runs
    ])
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(rounds))
    return rounds, values.mean(axis=0), spread


def find(paths: Iterable[str]) -> list[pathlib.Path]:
  """The runs' directories among these directories, and below those that are none.

  Raises:
    InputError: If there is none in one of them.
  """
  found = []
  for path in map(pathlib.Path, paths):
    here = [path] if (path / CONFIG).exists() or (path / METRICS).exists() else sorted(
        config.parent for config in path.rglob(CONFIG)
    )
    if not here:
      raise errors.InputError(
          f'{path} has no run; name the --output_dir of a run, or a directory of runs.'
      )
    found += here
  return list(dict.fromkeys(found))


def read(directory: pathlib.Path, rounds: Optional[int] = None) -> Optional[Run]:
  """A run.

  Args:
    directory: Its --output_dir.
    rounds: Where to cut it, if it is longer.

  Returns:
    The run; None if it has measured nothing yet.

  Raises:
    InputError: If what is there can't be read as one.
  """
  try:
    config = json.loads((directory / CONFIG).read_text(encoding='utf-8'))
    length = min(config['rounds'], rounds or config['rounds'])
    for name in ('flags', 'num_kept', 'dim', 'privacy', 'seed', 'task', 'algorithm', 'sampled'):
      config[name]
    found = [
        row for row in tables.Table(directory / METRICS).rows() if int(row['round']) <= length
    ]
    rows = [row for row in found if row['test_accuracy']]
    if not rows:
      return None
    rounds_done = int(found[-1]['round'])
    at_end = _at_end(found[-1], run_directory.read_json(directory / run_directory.SUMMARY))
    columns = {
        name: np.array([float(row[name] or math.nan) for row in rows])
        for name in (*_ALWAYS, *PADDING, *_EPSILONS)
        if name in _ALWAYS or name in rows[0]
    }
    seconds = sum(
        float(row['round_seconds']) + float(row['evaluation_seconds'])
        for row in tables.Table(directory / tables.TIMINGS).rows()
        if int(row['round']) <= length
    )
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.InputError(
        f'{directory} can\'t be read as a run ({type(error).__name__}: {error});'
        ' name the --output_dir of a run.'
    ) from None
  return Run(directory, config, columns, rounds_done, at_end, length, seconds or None)


def _at_end(row: dict[str, str], summary: dict[str, Any]) -> dict[str, float]:
  """What was spent and sent after a row's round, which may not have measured it."""
  values = {name: row[name] for name in _AT_END if row.get(name)}
  if summary.get('rounds') == int(row['round']):
    # The summary counts a round that was abandoned after the row.
    values |= {name: summary[name] for name in _AT_END if name in summary}
  return {name: float(value) for name, value in values.items()}


def text(value: Any) -> str:
  """A flag's value as it is typed."""
  if value is None:
    return 'default'
  return ','.join(map(str, value)) if isinstance(value, list) else str(value)


def group(runs: Sequence[Run]) -> list[Group]:
  """Runs of the same flags together, in the order of the first of each."""
  groups: dict[str, list[Run]] = {}
  for run in runs:
    flags = {name: value for name, value in run.config['flags'].items() if name != 'seed'}
    groups.setdefault(json.dumps([flags, run.rounds], sort_keys=True), []).append(run)
  return [
      Group(tuple(sorted(some, key=lambda run: run.config['seed'] or 0)))
      for some in groups.values()
  ]
