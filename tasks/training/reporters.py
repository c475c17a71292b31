"""Reports the rounds of a run: rows of its tables, lines of progress, and its results at the end."""

import math
import sys
import time
from typing import Any, Optional

import numpy as np
import psutil
import tensorflow_federated as tff
import tqdm

from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import loop
from fedsmp_tff.program import releases
from tasks import datasets
from tasks.training import experiment as experiment_lib
from tasks.training import plan as plan_lib
from tasks.training import run_directory
from tasks.training import tables as tables_lib

# Least time between two lines: in general, and before the line of an evaluation.
_SECONDS_PER_LINE, _SECONDS_BETWEEN_MEASURED = 30, 10


class Metrics(loop.Reporter):
  """Turns round reports into the rows of metrics.csv and timings.csv.

  Attributes:
    row: The last row of metrics.csv, by column.
  """

  def __init__(
      self, experiment: experiment_lib.Experiment, tables: tables_lib.Tables,
      ledger: Optional[ledger_lib.Ledger],
  ):
    """Initializes; `ledger` is None without privacy."""
    self._experiment = experiment
    # The maximum of evaluations on samples overestimates accuracy: it is no result.
    self._has_best = experiment.eval_examples is None
    self._tables = tables
    self._ledger = ledger
    self.row = {}
    self._rounds = 0
    names = ('best_test_accuracy', 'test_accuracy', 'test_loss')
    self._results = {**dict.fromkeys(names, math.nan), 'best_round': 0}

  def __call__(self, report: loop.RoundReport) -> None:
    self._rounds = report.rounds_done
    measured, results = report.evaluation, self._results
    if measured is not None:
      results.update(test_loss=measured.loss, test_accuracy=measured.accuracy)
      # Written so that the first evaluation, which follows a NaN, is the best.
      if not measured.accuracy <= results['best_test_accuracy']:
        results.update(best_test_accuracy=measured.accuracy, best_round=report.rounds_done)
    # Timings first: a row of metrics means that the round is complete.
    self._tables.timings.add({
        'round': report.rounds_done,
        'round_seconds': round(report.round_seconds, 3),
        'evaluation_seconds': round(report.evaluation_seconds, 3),
    })
    has_padding = datasets.TASKS[self._experiment.settings.task].padding is not None
    public = report.metrics['aggregator'] if report.metrics else {}
    self.row = {
        'round': report.rounds_done,
        'test_loss': measured and measured.loss,
        'test_accuracy': measured and measured.accuracy,
        **({'best_test_accuracy': results['best_test_accuracy']} if self._has_best else {}),
        **({
            'test_accuracy_masked': measured and measured.accuracy_masked,
            'test_accuracy_counted': measured and measured.accuracy_counted,
        } if has_padding else {}),
        **self._charged(report),
        'uplink_megabytes': self._experiment.uplink_megabytes(report.rounds_done),
        **{
            name: np.asarray(public[name]).item() if public else None
            for name in self._experiment.round.measurements
        },
    }
    self._tables.metrics.add(self.row)

  def _charged(self, report: loop.RoundReport) -> dict[str, Any]:
    """Returns the privacy spent, by column; epsilon with evaluations only, for it takes time."""
    if self._ledger is None:
      return {}
    measured = report.evaluation is not None
    epsilons = self._experiment.epsilons(report.rounds_charged if measured else 0)
    return {
        'rounds_charged': report.rounds_charged,
        **{name: value if measured else None for name, value in epsilons.items()},
    }

  def state(self) -> dict[str, Any]:
    scalars = {name: np.asarray(value)[()] for name, value in self._results.items()}
    return {**scalars, 'tables': self._tables.digests()}

  def restore(self, rounds_done: int, state: dict[str, Any]) -> None:
    """See `loop.Reporter`.

    Raises:
      InputError: If the tables are not those of this state.
    """
    settings = self._experiment.settings
    self._rounds = rounds_done
    self._results = {name: np.asarray(state[name]).item() for name in self._results}
    repeated = self._tables.resume(rounds_done, state['tables'])
    print(f'resuming after round {rounds_done} of {settings.rounds}', flush=True)
    if repeated:
      text = f'  rounds run again, since the checkpoint is older: {repeated}'
      if self._experiment.private and settings.seed is None:
        text += '; with fresh noise, so epsilon counts them again'
      print(text, flush=True)
    if self._ledger and (lost := self._ledger.rounds_charged(rounds_done) - rounds_done):
      end = self._experiment.spec.epsilon(rounds=settings.rounds + lost)
      text = (
          f'  rounds that count though they were lost or run again: {lost}; with them the run ends at'
          f' epsilon = {end:.4g}'
      )
      if settings.epsilon is not None and end > settings.epsilon:
        text += (
            f', above --epsilon={settings.epsilon:g}; --epsilon_budget={settings.epsilon:g} ends it'
            ' before that'
        )
      print(text, flush=True)

  def summary(self) -> dict[str, Any]:
    """Returns the results of the run, for summary.json."""
    results, spent = self._results, {}
    if self._ledger is not None:
      charged = self._ledger.rounds_charged()  # A round that was begun and lost counts.
      spent = {
          'rounds_charged': charged,
          **self._experiment.epsilons(charged),
          'guarantee_status': self._experiment.guarantee_status,
      }
    best = {name: results[name] for name in ('best_test_accuracy', 'best_round')}
    return {
        'rounds': self._rounds,
        'test_outside_guarantee': self._experiment.data.test_outside_guarantee,
        **(best if self._has_best else {}),
        'final_test_accuracy': results['test_accuracy'],
        'final_test_loss': results['test_loss'],
        # Earlier than the last round if the run was interrupted.
        'measured_round': self._tables.measured_round(),
        **spent,
        'uplink_megabytes': self._experiment.uplink_megabytes(self._rounds),
        'randomness': self._experiment.randomness,
    }


class Lines(loop.Reporter):
  """Prints lines of progress on stderr: loss, accuracy, epsilon, and the time left."""

  def __init__(self, experiment: experiment_lib.Experiment):
    self._experiment = experiment
    self._first = 0
    self._begun = math.nan  # Time of the first round of this process.
    self._last_line = time.monotonic()
    self._measured = self._spent = ''

  def __call__(self, report: loop.RoundReport) -> None:
    done, total = report.rounds_done, self._experiment.settings.rounds
    measured, spec = report.evaluation, self._experiment.spec
    if done == self._first:
      self._begun = time.monotonic()
    wait = _SECONDS_PER_LINE if measured is None else _SECONDS_BETWEEN_MEASURED
    is_due = done in (0, total) or time.monotonic() - self._last_line >= wait
    if measured is not None:
      self._measured = f'loss {measured.loss:.4f}, accuracy {100 * measured.accuracy:.2f} %'
    # Epsilon takes time: not after each round.
    if self._experiment.private and (measured is not None or is_due):
      self._spent = f', epsilon {spec.epsilon(rounds=report.rounds_charged):.3g}'
      if self._experiment.guarantee_status != 'valid':
        self._spent += f' {self._experiment.guarantee_status}'
    if is_due:
      self._last_line = time.monotonic()
      line = f'round {done}/{total}: {self._measured}{self._spent}'
      if rounds := done - self._first:
        seconds = (self._last_line - self._begun) / rounds
        left = tqdm.tqdm.format_interval(seconds * (total - done))
        line += f', {seconds:.3g} s a round, {left} left'
      _log(line)
    if done == self._first and done < total:
      _log('compiling the first round')

  def restore(self, rounds_done: int, state: Any) -> None:
    self._first = rounds_done
    self._begun = time.monotonic()
    _log('compiling the first round')


def all_of(
    metrics: Metrics, experiment: experiment_lib.Experiment, out: run_directory.RunDirectory,
    manager: Optional[tff.program.ReleaseManager],
) -> list[loop.Reporter]:
  """Returns a run's reporters: tables, lines of progress, TensorBoard, and the user's `manager`."""
  managers = [tff.program.TensorBoardReleaseManager(out.path), *([] if manager is None else [manager])]
  rows = [releases.Releases(manager, lambda report: metrics.row) for manager in managers]
  return [metrics, Lines(experiment), *rows]


def summary_text(
    experiment: experiment_lib.Experiment, summary: dict[str, Any], seconds: float
) -> str:
  """Returns the results of a run whose rounds and evaluations took `seconds`, as lines of text."""
  rounds, total, measured = summary['rounds'], experiment.settings.rounds, summary['measured_round']
  accuracy = 'final' if measured == rounds else f'not measured after round {measured}, there'
  accuracy += f' {100 * summary["final_test_accuracy"]:.2f} %'
  if 'best_test_accuracy' in summary:
    best = 100 * summary['best_test_accuracy']
    accuracy = f'best {best:.2f} % (round {summary["best_round"]}), {accuracy}'
  if experiment.eval_examples is not None and measured != total:
    accuracy += f', of {experiment.eval_examples:,} random test examples'
  command_seconds = time.time() - psutil.Process().create_time()  # Imports included.
  lines = [
      f'\n{rounds} of {total} rounds done',
      f'  accuracy   {accuracy}',
      f'  uplink     {summary["uplink_megabytes"]:.4g} MB a client on average',
      f'  time       {duration_text(command_seconds)} since this command began; all rounds and'
      f' measurements of the run took {duration_text(seconds)}',
  ]
  if experiment.private:
    spent = plan_lib.spent_text(experiment, summary['rounds_charged'])
    lines.append(f'  privacy    {spent}')
  return '\n'.join(lines)


def duration_text(seconds: float) -> str:
  """Returns a duration in at most two units with their names: 02:34 is ambiguous."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f'{hours} h {minutes} min'
  return f'{minutes} min {seconds} s' if minutes else f'{seconds} s'


def _log(line: str) -> None:
  print(line, file=sys.stderr, flush=True)
