"""Reports the rounds of a run: rows of its tables, lines on its progress, and its results at the end."""

from collections.abc import Iterator
import contextlib
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
from tasks.training import evaluation as evaluation_lib
from tasks.training import experiment as experiment_lib
from tasks.training import plan as plan_lib
from tasks.training import run_directory
from tasks.training import tables as tables_lib

# Between rounds, and after measurements.
_SECONDS_PER_LINE, _SECONDS_BETWEEN_MEASURED = 30, 10


class Metrics(loop.Reporter):
  """Turns round reports into the rows of metrics.csv and timings.csv.

  Attributes:
    row: The last row of metrics.csv, by column.
  """

  def __init__(
      self,
      experiment: experiment_lib.Experiment,
      tables: tables_lib.Tables,
      ledger: Optional[ledger_lib.Ledger],
  ):
    """Initializes.

    Args:
      experiment: The run.
      tables: The run's tables.
      ledger: What was spent; None without privacy.
    """
    self._experiment = experiment
    # The best of measurements on samples is the luckiest, and no result.
    self._has_best = experiment.eval_examples is None
    self._tables = tables
    self._ledger = ledger
    self.row = {}
    self._rounds = 0
    self._best_accuracy = self._accuracy = self._loss = math.nan
    self._best_round = 0

  def __call__(self, report: loop.RoundReport) -> None:
    self._rounds = report.rounds_done
    measured = report.evaluation
    if measured is not None:
      self._loss, self._accuracy = measured.loss, measured.accuracy
      # Written so that the first, which follows a NaN, is the best.
      if not self._accuracy <= self._best_accuracy:
        self._best_accuracy, self._best_round = self._accuracy, self._rounds
    public = report.metrics['aggregator'] if report.metrics else {}
    # First what is not a result: a row of metrics means that the round is complete.
    self._tables.timings.add({
        'round': report.rounds_done,
        'round_seconds': round(report.round_seconds, 3),
        'evaluation_seconds': round(report.evaluation_seconds, 3),
    })
    self.row = {
        'round': report.rounds_done,
        'test_loss': measured and measured.loss,
        'test_accuracy': measured and measured.accuracy,
        **({'best_test_accuracy': self._best_accuracy} if self._has_best else {}),
        **self._of_padding(measured),
        **self._charged(report),
        'uplink_megabytes': self._experiment.uplink_megabytes(report.rounds_done),
        # One number each.
        **{
            name: np.asarray(public[name]).item() if public else None
            for name in self._experiment.round.measurements
        },
    }
    self._tables.metrics.add(self.row)

  def _of_padding(self, measured: Optional[evaluation_lib.Evaluation]) -> dict[str, Any]:
    """Accuracy without padding and with it, whichever `test_accuracy` is."""
    if datasets.TASKS[self._experiment.settings.task].is_padding is None:
      return {}
    return {
        'test_accuracy_masked': measured and measured.accuracy_masked,
        'test_accuracy_counted': measured and measured.accuracy_counted,
    }

  def _charged(self, report: loop.RoundReport) -> dict[str, Any]:
    """The privacy spent, from the ledger."""
    if self._ledger is None:
      return {}
    # Privacy loss distributions take time: where accuracy is measured too.
    measured = report.evaluation is not None
    epsilons = self._experiment.epsilons(report.rounds_charged if measured else 0)
    return {
        'rounds_charged': report.rounds_charged,
        **{n: value if measured else None for n, value in epsilons.items()},
    }

  def state(self) -> dict[str, Any]:
    return {
        'best_test_accuracy': np.float64(self._best_accuracy),
        'best_round': np.int64(self._best_round),
        'test_accuracy': np.float64(self._accuracy),
        'test_loss': np.float64(self._loss),
        'tables': self._tables.digests(),
    }

  def restore(self, rounds_done: int, state: dict[str, Any]) -> None:
    """See `loop.Reporter`.

    Raises:
      InputError: If the tables are not those of this state.
    """
    self._rounds = rounds_done
    self._best_accuracy = float(state['best_test_accuracy'])
    self._best_round = int(state['best_round'])
    self._accuracy = float(state['test_accuracy'])
    self._loss = float(state['test_loss'])
    again = self._tables.resume(rounds_done, state['tables'])
    total = self._experiment.settings.rounds
    print(f'resuming after round {rounds_done} of {total}', flush=True)
    if again:
      text = f'  rounds run again, since the checkpoint is older: {again}'
      if self._experiment.private and self._experiment.settings.seed is None:
        text += '; with fresh noise, so epsilon counts them again'
      print(text, flush=True)
    if self._ledger is not None and (lost := self._ledger.rounds_charged(rounds_done) - rounds_done):
      print(self._lost_text(lost), flush=True)

  def _lost_text(self, lost: int) -> str:
    """Returns what rounds cost that count besides those of the plan."""
    settings = self._experiment.settings
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
    return text

  def summary(self) -> dict[str, Any]:
    """Returns the results of the run, for summary.json."""
    return {
        'rounds': self._rounds,
        'test_outside_guarantee': self._experiment.data.test_outside_guarantee,
        **(
            {'best_test_accuracy': self._best_accuracy, 'best_round': self._best_round}
            if self._has_best else {}
        ),
        'final_test_accuracy': self._accuracy,
        'final_test_loss': self._loss,
        # Of a run that was interrupted, an earlier round than the last.
        'measured_round': self._tables.measured_round(),
        **self._spent(),
        'uplink_megabytes': self._experiment.uplink_megabytes(self._rounds),
        'randomness': self._experiment.randomness,
    }

  def _spent(self) -> dict[str, Any]:
    if self._ledger is None:
      return {}
    # One that was begun and abandoned counts.
    charged = self._ledger.rounds_charged()
    return {
        'rounds_charged': charged,
        **self._experiment.epsilons(charged),
        'guarantee_status': self._experiment.guarantee_status,
    }


class Lines(loop.Reporter):
  """A bar with ETA, loss, accuracy and epsilon on a terminal; lines in a file."""

  def __init__(self, experiment: experiment_lib.Experiment):
    """Initializes; `close` ends the bar."""
    self._experiment = experiment
    self._bar = tqdm.tqdm(
        total=experiment.settings.rounds,
        unit='round',
        dynamic_ncols=True,
        disable=None,
    )
    self._first = 0
    # When the first round of this process began.
    self._begun = math.nan
    self._last_line = time.monotonic()
    self._measured = self._spent = ''

  def __call__(self, report: loop.RoundReport) -> None:
    done, total = report.rounds_done, self._experiment.settings.rounds
    if done == self._first:
      self._begun = time.monotonic()
    measured = report.evaluation
    if measured is not None:
      self._measured = (
          f'loss {measured.loss:.4f}, accuracy {100 * measured.accuracy:.2f} %'
      )
    wait = _SECONDS_PER_LINE if measured is None else _SECONDS_BETWEEN_MEASURED
    is_due = done in (0, total) or time.monotonic() - self._last_line >= wait
    # Composing losses takes time: not after each round.
    if self._experiment.private and (measured is not None or is_due):
      epsilon = self._experiment.spec.epsilon(rounds=report.rounds_charged)
      self._spent = f', epsilon {epsilon:.3g}'
      if self._experiment.guarantee_status != 'valid':
        self._spent += f' {self._experiment.guarantee_status}'
    text = self._measured + self._spent
    if not self._bar.disable:
      self._bar.set_postfix_str(text, refresh=False)
      self._bar.update(done - self._bar.n)
      self._bar.refresh()
      return
    if is_due:
      self._say(done, text)
    if done == self._first and done < total:
      print('compiling the first round', file=sys.stderr, flush=True)

  def _say(self, done: int, text: str) -> None:
    """Prints a line: the round, what is known, seconds a round and the time left."""
    self._last_line = time.monotonic()
    total = self._experiment.settings.rounds
    parts = [text] if text else []
    if run := done - self._first:
      seconds = (self._last_line - self._begun) / run
      left = tqdm.tqdm.format_interval(seconds * (total - done))
      parts += [f'{seconds:.3g} s a round', f'{left} left']
    print(f'round {done}/{total}: {", ".join(parts)}', file=sys.stderr, flush=True)

  def restore(self, rounds_done: int, state: Any) -> None:
    self._first = self._bar.initial = rounds_done
    self._begun = time.monotonic()
    self._bar.update(rounds_done - self._bar.n)
    if self._bar.disable:
      print('compiling the first round', file=sys.stderr, flush=True)

  def close(self) -> None:
    self._bar.close()


@contextlib.contextmanager
def all_of(
    metrics: Metrics,
    experiment: experiment_lib.Experiment,
    out: run_directory.RunDirectory,
    manager: Optional[tff.program.ReleaseManager],
) -> Iterator[list[loop.Reporter]]:
  """Yields the reporters of a run: its tables, lines on its progress, and release managers.

  Args:
    metrics: Its tables.
    experiment: The run.
    out: Its directory, for TensorBoard.
    manager: A release manager of the user's; None: none.
  """
  managers = [tff.program.TensorBoardReleaseManager(out.path)]
  if manager is not None:
    managers.append(manager)
  with contextlib.closing(Lines(experiment)) as lines:
    yield [
        metrics, lines,
        *(releases.Releases(manager, lambda report: metrics.row) for manager in managers),
    ]


def summary_text(
    experiment: experiment_lib.Experiment, summary: dict[str, Any], seconds: float
) -> str:
  """Returns the results of a run that took `seconds`, for people."""
  rounds = summary['rounds']
  lines = [f'\n{rounds} of {experiment.settings.rounds} rounds done']
  measured = summary['measured_round']
  last = 'final' if measured == rounds else f'not measured after round {measured}, there'
  best = ''
  if 'best_test_accuracy' in summary:
    best = f'best {100 * summary["best_test_accuracy"]:.2f} % (round {summary["best_round"]}), '
  of_sample = ''
  if experiment.eval_examples is not None and measured != experiment.settings.rounds:
    of_sample = f', of {experiment.eval_examples:,} random test examples'
  lines += [
      f'  accuracy   {best}{last} {100 * summary["final_test_accuracy"]:.2f} %{of_sample}',
      f'  uplink     {summary["uplink_megabytes"]:.4g} MB a client on average',
      f'  time       {duration_text(seconds_since_start())} since this command began; all rounds and'
      f' measurements of the run took {duration_text(seconds)}',
  ]
  if experiment.private:
    charged = summary['rounds_charged']
    lines.append(f'  privacy    {plan_lib.spent_text(experiment, charged)}')
  return '\n'.join(lines)


def duration_text(seconds: float) -> str:
  """A duration in two units at most, which are named: 02:34 may be minutes or hours."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f'{hours} h {minutes} min'
  return f'{minutes} min {seconds} s' if minutes else f'{seconds} s'


def seconds_since_start() -> float:
  """Returns the seconds since this process began, imports included."""
  return time.time() - psutil.Process().create_time()
