"""Turns round reports into the rows of metrics.csv and timings.csv, and a summary."""

import math
from typing import Any, Optional

import numpy as np

from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import loop
from tasks import datasets
from tasks.training import evaluation as evaluation_lib
from tasks.training import experiment as experiment_lib
from tasks.training import run_tables


class MetricsWriter(loop.Reporter):
  """Turns round reports into the rows of metrics.csv and timings.csv.

  Attributes:
    row: The last row of metrics.csv, by column.
  """

  def __init__(
      self,
      experiment: experiment_lib.Experiment,
      tables: run_tables.RunTables,
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
    self._tables.add_timings({
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
    self._tables.add_metrics(self.row)

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
        'verdict': self._experiment.verdict,
    }
