"""Reads runs from disk for reports, and groups them over seeds."""

from collections.abc import Collection, Iterable, Mapping, Sequence
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
UNSCALED = ', unscaled'
_COLUMNS = ('round', 'test_loss', 'test_accuracy', 'uplink_megabytes')
# Columns that grow between evaluations too.
_CUMULATIVE = ('epsilon', 'epsilon_paper', 'uplink_megabytes')


@dataclasses.dataclass(frozen=True)
class Run:
  """One run.

  Attributes:
    path: Its directory.
    config: The contents of its config.json.
    columns: Columns of metrics.csv, float[rows], in the rows with an accuracy; accuracy in percent.
      Where only the sample was evaluated, the initial value on all test examples plus the
      difference on the sample, so that curves have no steps and compare with other runs.
    rounds_done: Number of rounds done, evaluated or not.
    values: Values after the last round by name, NaN where unknown: best, final and masked (without
      padding) accuracy in percent, gain over the initial weights in points, loss, epsilon,
      epsilon_paper, uplink_megabytes. `best` is NaN if evaluations sampled the test set: the
      maximum of noisy evaluations overestimates accuracy.
    seconds: Time of the rounds with their evaluations.
  """

  path: pathlib.Path
  config: dict[str, Any]
  columns: dict[str, np.ndarray]
  rounds_done: int
  values: dict[str, float]
  seconds: float


@dataclasses.dataclass(frozen=True)
class Group:
  """One or more runs with equal configuration and rounds done, in the order of their seeds."""

  runs: tuple[Run, ...]

  @property
  def config(self) -> dict[str, Any]:
    """The shared configuration."""
    return self.runs[0].config

  @property
  def rounds_done(self) -> int:
    """Number of rounds done."""
    return self.runs[0].rounds_done

  @property
  def complete(self) -> bool:
    """Whether all rounds are done."""
    return self.rounds_done >= self.config['rounds']

  @property
  def uses_validation_set(self) -> bool:
    """Whether accuracies are of a validation set."""
    return bool(self.config['flags'].get('validation_examples'))

  @property
  def system(self) -> str:
    """The system, and whether it trains the last layer alone, in a few words."""
    is_head = self.config['flags'].get('trainable') == settings.HEAD
    title = systems.SYSTEMS.title(self.config['algorithm']) + UNSCALED * self.unscaled
    return title + (', last layer' if is_head else '')

  @property
  def unscaled(self) -> bool:
    """Whether rand-k leaves masked values as they are, as in Definition 6."""
    return is_unscaled(self.config['flags'])

  @property
  def label(self) -> str:
    """The system, p and sigma."""
    text = self.system
    if self.p < 1:
      text += f', p = {self.p:.3g}'
    if self.noise_multiplier is not None:
      text += f', sigma = {self.noise_multiplier:.3g}'
    return text

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
    # Without rounds a run claims epsilon = 0.
    return of_clients and (bool(self.config['privacy']) or not self.config['rounds'])

  def differences(
      self, identity: dict[str, Any], ignored: Collection[str] = NOT_COMPARED
  ) -> list[str]:
    """Returns 'FLAG = VALUE' for each flag in which the runs differ from a run's identity."""
    flags = self.config['flags']
    return [
        f'{name} = {_text(flags.get(name))}' for name, value in identity.items()
        if name not in ignored and flags.get(name) != value
    ]

  def mean_and_std(self, name: str) -> tuple[float, Optional[float]]:
    """Returns mean and sample standard deviation (None for one run) of one of `Run.values`."""
    values = np.array([run.values[name] for run in self.runs])
    with np.errstate(invalid='ignore'):  # Epsilon without noise is infinite.
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


def is_unscaled(flags: Mapping[str, Any]) -> bool:
  """Returns `Group.unscaled` of a run with these flags; earlier versions always scaled."""
  return flags.get('unbiased') is False


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
          f'{path} has no run. Name the --output_dir of a run, or a directory of runs.'
      )
    directories += runs
  return list(dict.fromkeys(directories))


def read(directory: pathlib.Path) -> Optional[Run]:
  """Reads the run of a directory; None if it has no evaluation yet.

  Raises:
    InputError: If the directory can't be read as a run.
  """
  try:
    config = run_directory.read_config(directory)
    rows = [*tables.Table(directory / tables.METRICS).rows()]
    evaluated = [
        row for row in rows if row['test_accuracy'] or row.get('test_sample_accuracy')
    ]
    if not evaluated:
      return None
    columns = {name: np.array([_number(row[name]) for row in evaluated]) for name in _COLUMNS}
    for name in ('test_loss', 'test_accuracy'):
      sample = [_number(row.get(name.replace('test_', 'test_sample_'))) for row in evaluated]
      estimate = columns[name][0] + np.subtract(sample, sample[0])
      columns[name] = np.where(np.isnan(columns[name]), estimate, columns[name])
    columns['test_accuracy'] *= 100
    # Written so that NaN, which compares false, is refused.
    if not all(0 <= accuracy <= 100 for accuracy in columns['test_accuracy']):
      raise ValueError('an accuracy is not from 0 to 1')
    rounds_done = int(rows[-1]['round'])
    values = {
        'best': math.nan if config['sampled'] else columns['test_accuracy'].max(),
        'final': columns['test_accuracy'][-1],
        'masked': 100 * _number(evaluated[-1].get('test_accuracy_masked')),
        'gain': math.nan,  # Of runs without an evaluation of the initial weights.
        'loss': columns['test_loss'][-1],
        **{name: _number(rows[-1].get(name)) for name in _CUMULATIVE},
    }
    summary = run_directory.read_json(directory / run_directory.SUMMARY)
    if summary.get('rounds') == rounds_done:
      # The summary includes a round that was abandoned after the last row.
      values |= {name: float(summary[name]) for name in _CUMULATIVE if name in summary}
      values['gain'] = 100 * float(summary.get('gain', math.nan))
    seconds = tables.seconds(tables.Table(directory / tables.TIMINGS))
    return Run(directory, config, columns, rounds_done, values, seconds)
  except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
    raise errors.InputError(
        f'{directory} can\'t be read as a run ({type(error).__name__}: {error}).'
        ' Name the --output_dir of a run.'
    ) from None


def _number(text: Optional[str]) -> float:
  """Returns a number in a table; NaN for an empty or a missing one."""
  return float(text or math.nan)


def _text(value: Any) -> str:
  """Returns a flag's value as typed."""
  if value is None:
    return 'default'
  return ','.join(map(str, value)) if isinstance(value, list) else str(value)


def group(runs: Sequence[Run]) -> list[Group]:
  """Groups runs with equal flags, except the seed, rounds done and evaluated, sorted by task."""
  groups: dict[str, list[Run]] = {}
  for run in runs:
    flags = {name: value for name, value in run.config['flags'].items() if name != 'seed'}
    rounds = run.rounds_done, float(run.columns['round'][-1])
    groups.setdefault(json.dumps([flags, rounds], sort_keys=True), []).append(run)
  tasks = [*datasets.TASKS.names, *(run.config['task'] for run in runs)]
  return sorted(
      (
          Group(tuple(sorted(members, key=lambda run: run.config['seed'] or 0)))
          for members in groups.values()
      ),
      key=lambda group: tasks.index(group.config['task']),
  )
