"""Reads runs from their directories for reports, and groups them over seeds."""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import functools
import json
import math
import pathlib
from typing import Any, Optional

import numpy as np

from fedsmp_tff import errors as library_errors
from tasks import datasets
from tasks import errors
from tasks import methods
from tasks.cli import options
from tasks.cli import plugins
from tasks.experiments import paper_tables
from tasks.methods import randk
from tasks.training import finished
from tasks.training import run_directory
from tasks.training import settings
from tasks.training import tables

# Flags that change how a run is measured, or that tables and figures show elsewhere.
NOT_COMPARED = tuple(
    name for name, option in options.options_of(settings.RunSettings).items()
    if not option.in_comparisons
)
# The option of rand-k that chooses between the two readings of the paper.
READING = 'unbiased'
UNSCALED = ', unscaled'
_RANDK = [name for name in methods.NAMES if methods.METHODS[name].options is randk.Options]
# Both readings are the paper's.
NOT_COMPARED_WITH_PAPER = (*NOT_COMPARED, READING)
_READINGS = {False: 'scaled, as in Algorithm 1', True: 'unscaled, as in Definition 6'}
# The parts of config.json that reports use.
_REPORTED = (
    'task', 'algorithm', 'sampled', 'flags', 'rounds', 'num_kept', 'dim', 'seed', 'privacy',
)
COLUMNS = ('round', 'test_accuracy', 'test_loss', 'epsilon', 'uplink_megabytes')
# Columns that grow between evaluations too.
_CUMULATIVE = ('epsilon', 'epsilon_paper', 'uplink_megabytes')
# The values after the last round that do not follow from `COLUMNS`.
LAST = ('masked', 'gain', *_CUMULATIVE)
UNREADABLE = (OSError, ValueError, KeyError, TypeError, OverflowError)


@dataclasses.dataclass(frozen=True)
class Run:
  """One run.

  Attributes:
    name: The name of its directory.
    config: The parts of its config.json that reports use.
    columns: `COLUMNS` of metrics.csv, float[rows], in the rows with an accuracy. Where only the
      sample was evaluated, the initial value on all test examples plus the difference on the
      sample, so that curves have no steps and compare with other runs.
    rounds_done: Number of rounds done, evaluated or not.
    values: Values after the last round by name, NaN where unknown: best, final and masked (without
      padding) accuracy in percent, gain over the initial weights in points, loss, epsilon,
      epsilon_paper, uplink_megabytes. `best` is NaN if evaluations sampled the test set: the
      maximum of noisy evaluations overestimates accuracy.
    seconds: Time of the rounds with their evaluations.
  """

  name: str
  config: dict[str, Any]
  columns: dict[str, np.ndarray]
  rounds_done: int
  values: dict[str, float]
  seconds: float

  def continues(self, other: 'Run') -> bool:
    """Returns whether the other run is this one, or is what this one was after fewer rounds."""
    rows = len(other.columns['round'])
    return (
        self.config == other.config and self.rounds_done >= other.rounds_done
        and all(
            np.array_equal(self.columns[name][:rows], other.columns[name], equal_nan=True)
            for name in COLUMNS
        )
    )

  def first_to_reach(self, accuracy: float) -> Optional[tuple[int, float]]:
    """Returns (round, uplink in MB) of the first evaluation with an accuracy, in percent."""
    reached = np.flatnonzero(self.columns['test_accuracy'] >= accuracy / 100)
    if not len(reached):
      return None
    return int(self.columns['round'][reached[0]]), self.columns['uplink_megabytes'][reached[0]]


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
  def method(self) -> str:
    """The method, whether it trains the last layer alone, and who chose it, in a few words."""
    is_head = self.config['flags'].get('trainable') == settings.HEAD
    title = plugins.title(self.config['algorithm'], methods.METHODS) + UNSCALED * self.unscaled
    chosen = ', chosen by tasks.tune' if self.config.get('choice') else ''
    return title + (', last layer' if is_head else '') + chosen

  @property
  def unscaled(self) -> bool:
    """Whether rand-k leaves masked values as they are, as in Definition 6."""
    return self.config['flags'].get(READING) is False  # Earlier versions always scaled.

  @property
  def reading(self) -> str:
    """Which reading of the paper's rand-k this is, in words; '' for other masks."""
    is_randk = self.config['algorithm'] in _RANDK
    return _READINGS[self.unscaled] if is_randk else ''

  @property
  def label(self) -> str:
    """The method, p and sigma."""
    text = self.short_label
    if self.noise_multiplier is not None:
      text += f', sigma = {self.noise_multiplier:.3g}'
    return text

  @property
  def short_label(self) -> str:
    """The method and p."""
    return self.method + (f', p = {self.p:.3g}' if self.p < 1 else '')

  @property
  def p(self) -> float:
    """The compression ratio as it was set; k/d, which is rounded, if no p has this k."""
    num_kept, dim, p = self.config['num_kept'], self.config['dim'], self.config['flags'].get('p')
    is_set = isinstance(p, float) and max(1, round(p * dim)) == num_kept
    return p if is_set else num_kept / dim

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

  @property
  def in_paper_setting(self) -> bool:
    """Whether all flags but p, sigma and rounds are the paper's, in either reading of rand-k."""
    identity = paper_tables.identity(self.config['task'], self.config['algorithm'])
    return identity is not None and not self.differences(identity, NOT_COMPARED_WITH_PAPER)

  def differences(
      self, identity: dict[str, Any], ignored: Collection[str] = NOT_COMPARED
  ) -> list[str]:
    """Returns 'FLAG = VALUE' for each flag in which the runs differ from a run's identity."""
    flags = self.config['flags']
    if not self.config['rounds']:
      ignored = (*ignored, *finished.OF_ROUNDS)
    return [
        f'{name} = {finished.flag_text(name, own)}' for name, value in identity.items()
        if name not in ignored and (own := finished.recorded_flag(flags, name)) != value
    ]

  def mean_and_std(self, name: str) -> tuple[float, Optional[float]]:
    """Returns mean and sample standard deviation (None for one run) of one of `Run.values`."""
    values = np.array([run.values[name] for run in self.runs])
    with np.errstate(invalid='ignore'):  # Epsilon without noise is infinite.
      return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None

  def mean(self, name: str) -> float:
    """Returns the mean of one of `Run.values`."""
    return self.mean_and_std(name)[0]

  def first_to_reach(self, accuracy: float) -> list[tuple[int, float]]:
    """Returns `Run.first_to_reach` of the runs that reach an accuracy, in percent."""
    return [found for run in self.runs if (found := run.first_to_reach(accuracy))]

  def can_measure_uplink_to(self, accuracy: float) -> bool:
    """Returns whether the runs show the uplink until an accuracy, in percent, is reached.

    They do if they are complete, if evaluations have all examples of the test set, and if initial
    weights are below it.
    """
    reached = self.first_to_reach(accuracy)
    starts_there = len(reached) == len(self.runs) and not any(round_num for round_num, _ in reached)
    return bool(
        self.complete and self.rounds_done and not self.uses_validation_set
        and not self.config['sampled'] and not starts_there
    )

  def curve(self, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the rounds that all runs evaluated, and mean and std there; accuracy in percent."""
    rounds = functools.reduce(np.intersect1d, [run.columns['round'] for run in self.runs])
    unit = 100 if column == 'test_accuracy' else 1
    values = np.stack([
        unit * run.columns[column][np.isin(run.columns['round'], rounds)] for run in self.runs
    ])
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(rounds))
    return rounds, values.mean(axis=0), spread


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
    # A run without clipping has no epsilon.
    columns = {name: [{'epsilon': '', **row}[name] for row in evaluated] for name in COLUMNS}
    for name in ('test_accuracy', 'test_loss'):
      columns[name] = _with_estimates(evaluated, name)
    rounds_done = int(rows[-1]['round'])
    last = {name: number(rows[-1].get(name)) for name in _CUMULATIVE}
    last['masked'] = 100 * number(evaluated[-1].get('test_accuracy_masked'))
    summary = run_directory.read_json(directory / run_directory.SUMMARY)
    if summary.get('rounds') == rounds_done:
      # The summary includes a round that was abandoned after the last row.
      last |= {name: float(summary[name]) for name in _CUMULATIVE if name in summary}
      last['gain'] = 100 * float(summary.get('gain', math.nan))
    seconds = tables.seconds(tables.Table(directory / tables.TIMINGS))
    return make_run(directory.name, config, [*columns.values()], rounds_done, last, seconds)
  except UNREADABLE as error:
    raise errors.InputError(
        f'{directory} can\'t be read as a run ({type(error).__name__}: {error}).'
        ' Name the --output_dir of a run.'
    ) from None


def _with_estimates(rows: Sequence[Mapping[str, str]], name: str) -> list[str]:
  """Returns a column of all test examples, estimated where only the sample was evaluated."""
  sample_name = name.replace('test_', 'test_sample_')
  start, sample_start = number(rows[0][name]), number(rows[0].get(sample_name))
  texts = []
  for row in rows:
    estimate = start + number(row.get(sample_name)) - sample_start
    if name == 'test_accuracy' and not math.isnan(estimate):
      estimate = min(max(estimate, 0.0), 1.0)
    texts.append(row[name] or str(estimate))
  return texts


def make_run(
    name: str, config: dict[str, Any], columns: Sequence[Sequence[str]], rounds_done: int,
    last: Mapping[str, float], seconds: float,
) -> Run:
  """Returns a run as reports see it, from its directory or from what is kept of it.

  Args:
    name: Its name.
    config: The contents of its config.json, which `run_directory.check_config` accepts.
    columns: The texts of `COLUMNS` in the evaluated rounds.
    rounds_done: Number of rounds done, evaluated or not.
    last: The values of `LAST` after the last round; those that are not there are unknown.
    seconds: Time of the rounds with their evaluations.

  Raises:
    ValueError: If these are not of a run.
  """
  curve = {name: np.array([*map(number, texts)]) for name, texts in zip(COLUMNS, columns)}
  # Written so that NaN, which compares false, is refused.
  if not all(0 <= accuracy <= 1 for accuracy in curve['test_accuracy']):
    raise ValueError('an accuracy is not from 0 to 1')
  rounds, uplink = curve['round'], curve['uplink_megabytes']
  if not all(np.isfinite(uplink)) or any(uplink < 0) or any(rounds % 1):
    raise ValueError('a round is not a whole number, or an uplink is not a finite one from 0')
  if not (len(rounds) and all(np.diff(rounds) > 0) and 0 <= rounds[0] and rounds[-1] <= rounds_done):
    raise ValueError(f'the evaluated rounds do not increase from 0 to {rounds_done}')
  reported = {name: config[name] for name in _REPORTED}
  if config.get('choice'):
    reported['choice'] = True
  reported['test_outside_guarantee'] = bool(config.get('test_outside_guarantee'))
  if privacy := config['privacy']:
    reported['privacy'] = {'noise_multiplier': privacy['noise_multiplier']}
  values = {
      'best': math.nan if config['sampled'] else 100 * curve['test_accuracy'].max(),
      'final': 100 * curve['test_accuracy'][-1],
      'loss': curve['test_loss'][-1],
      **{name: last.get(name, math.nan) for name in LAST},
  }
  # A directory's name may not be text.
  return Run(library_errors.printable(name), reported, curve, rounds_done, values, seconds)


def number(text: Optional[str]) -> float:
  """Returns a number in a table; NaN for an empty or a missing one."""
  return float(text or math.nan)


def group(runs: Sequence[Run]) -> list[Group]:
  """Groups runs with equal flags, except the seed, rounds done and evaluated, sorted by task."""
  groups: dict[str, list[Run]] = {}
  for run in runs:
    flags = {name: value for name, value in run.config['flags'].items() if name != 'seed'}
    rounds = run.rounds_done, float(run.columns['round'][-1])
    key = [flags, rounds, bool(run.config.get('choice'))]
    groups.setdefault(json.dumps(key, sort_keys=True), []).append(run)
  tasks = [*datasets.NAMES, *(run.config['task'] for run in runs)]
  return sorted(
      (
          Group(tuple(sorted(members, key=lambda run: run.config['seed'] or 0)))
          for members in groups.values()
      ),
      key=lambda group: tasks.index(group.config['task']),
  )
