"""Reports the rounds of a run: table rows, lines of progress, and the results at its end."""

import datetime
import sys
import time
from typing import Any, Optional

import numpy as np
import tensorflow_federated as tff
import tqdm

from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import loop
from fedsmp_tff.program import releases
from tasks import datasets
from tasks.training import evaluation
from tasks.training import experiment as experiment_lib
from tasks.training import finished
from tasks.training import plan as plan_lib
from tasks.training import run_directory

_SECONDS_PER_LINE = 10  # Minimum.
# Columns on all test examples, and on the sample of --eval_examples.
_TEST, _SAMPLE = 'test_', 'test_sample_'
# Groups of TensorBoard's tags, by the beginning of a column; the others are of the round.
_GROUPS = {
    _TEST: 'test/', 'rounds_charged': 'privacy/rounds_charged', 'epsilon': 'privacy/epsilon',
    'uplink_': 'uplink/',
}


class Metrics(loop.Reporter):
  """Turns round reports into the rows of metrics.csv and timings.csv, and these into a summary."""

  def __init__(
      self, experiment: experiment_lib.Experiment, out: run_directory.RunDirectory,
      ledger: ledger_lib.Ledger,
  ):
    """Initializes."""
    self._experiment = experiment
    self._metrics, self._timings = out.metrics, out.timings
    self._ledger = ledger if experiment.private else None
    # An interrupt can leave a row of a round that is not complete.
    self._last_row, self._complete = 0, (0, {})

  def __call__(self, report: loop.RoundReport) -> None:
    # Timings first: a row of metrics means that the round is complete.
    self._timings.add({
        'round': report.rounds_done,
        'round_seconds': round(report.round_seconds, 3),
        'evaluation_seconds': round(report.evaluation_seconds, 3),
    })
    self._metrics.add(self.row(report))
    self._last_row = report.rounds_done

  def row(self, report: loop.RoundReport) -> dict[str, Any]:
    """Returns the row of metrics.csv for a report, by column."""
    experiment = self._experiment
    names = ['loss', 'accuracy']
    if datasets.TASKS[experiment.settings.task].padding is not None:
      names += ['accuracy_masked', 'accuracy_counted']
    test, sample = report.evaluation or (None, None)
    measured = {_TEST: test}
    if experiment.eval_examples is not None:
      measured[_SAMPLE] = sample
    public = report.metrics['aggregator'] if report.metrics else {}
    return {
        'round': report.rounds_done,
        **{
            prefix + name: result and getattr(result, name)
            for prefix, result in measured.items() for name in names
        },
        **self._charged(report),
        'uplink_megabytes': experiment.uplink_megabytes(report.rounds_done),
        **{
            name: np.asarray(public[name]).item() if public else None
            for name in experiment.round.measurements
        },
    }

  def _charged(self, report: loop.RoundReport) -> dict[str, Any]:
    """Returns the privacy spent, by column; epsilon only with evaluations, since it takes time."""
    if self._ledger is None:
      return {}
    measured = report.evaluation is not None
    epsilons = self._experiment.epsilons(report.rounds_charged if measured else 0)
    return {
        'rounds_charged': report.rounds_charged,
        **{name: value if measured else None for name, value in epsilons.items()},
    }

  def state(self) -> dict[str, np.ndarray]:
    digests = {'metrics': self._metrics.digest(), 'timings': self._timings.digest()}
    self._complete = self._last_row, digests
    return digests

  def restore(self, rounds_done: int, state: dict[str, np.ndarray]) -> None:
    """See `loop.Reporter`.

    Raises:
      InputError: If the tables do not match this state.
    """
    self._last_row, self._complete = rounds_done, (rounds_done, state)
    self._keep_complete()

  def _keep_complete(self, with_timings: bool = True) -> None:
    """Removes the rows of later rounds; raises InputError if the other rows were changed."""
    rounds_done, digests = self._complete
    self._metrics.keep(rounds_done, digests['metrics'])
    if with_timings:
      self._timings.keep(rounds_done, digests['timings'])

  def summary(self, finished: bool) -> dict[str, Any]:
    """Returns the results of the run, for summary.json; `finished`: nothing ended it early.

    Raises:
      InputError: If metrics.csv, or before the last round timings.csv, was changed.
    """
    experiment, rounds = self._experiment, self._complete[0]
    # A finished run's results need no timings: if these were changed, nothing is lost.
    self._keep_complete(with_timings=not finished)
    rows = self._metrics.rows()
    test, sample = (_accuracies(rows, prefix) for prefix in (_TEST, _SAMPLE))
    last = max({*test, *sample})  # Earlier than the last round if the run was interrupted.
    # A difference is a gain only on the same examples.
    prefix, accuracies = (_TEST, test) if last in test else (_SAMPLE, sample)
    gain, best, spent = {}, {}, {}
    if last:
      gain = {
          'initial_test_accuracy': accuracies[0], 'gain': accuracies[last] - accuracies[0],
      }
    # The maximum of evaluations on samples overestimates accuracy, and is not a result.
    if experiment.eval_examples is None:
      best_round = max(test, key=test.get)
      best = {'best_test_accuracy': test[best_round], 'best_round': best_round}
    if self._ledger is not None:
      charged = self._ledger.rounds_charged()  # A round that was begun and lost counts.
      spent = {
          'rounds_charged': charged,
          'choice_rounds': experiment.choice_rounds,
          'guarantee_status': experiment.guarantee_status,
          **experiment.epsilons(charged),
      }
    return {
        'rounds': rounds,
        'finished': finished,
        'test_outside_guarantee': experiment.data.test_outside_guarantee,
        **best,
        'final_test_accuracy': accuracies[last],
        'final_test_loss': float(rows[last][f'{prefix}loss']),
        **gain,
        'measured_round': last,
        **spent,
        'uplink_megabytes': experiment.uplink_megabytes(rounds),
    }


def _accuracies(rows: list[dict[str, str]], prefix: str) -> dict[int, float]:
  """Returns the accuracies on a set of examples, by round."""
  name = f'{prefix}accuracy'
  return {int(row['round']): float(row[name]) for row in rows if row.get(name)}


class Lines(loop.Reporter):
  """Prints lines of progress on stderr: loss, accuracy, epsilon, and the time left."""

  def __init__(self, experiment: experiment_lib.Experiment):
    self._experiment = experiment
    self._total = experiment.settings.rounds
    self._last_line = 0.0
    self._begun = 0

  def __call__(self, report: loop.RoundReport) -> None:
    done, now = report.rounds_done, time.monotonic()
    rounds = done - self._begun - 1  # The first round of this process compiles: it is no measure.
    if not rounds:
      self._compiled = now
    if done in (0, self._total) or now - self._last_line >= _SECONDS_PER_LINE:
      self._last_line = now
      parts = [] if report.evaluation is None else [_measured_text(*report.evaluation)]
      if self._experiment.private:
        text = f'epsilon {self._experiment.epsilon(report.rounds_charged):.3g}'
        status = self._experiment.guarantee_status
        parts.append(text if status == 'valid' else f'{text} {status}')
      if rounds > 0:
        seconds = (now - self._compiled) / rounds
        left = tqdm.tqdm.format_interval(seconds * (self._total - done))
        parts.append(f'{seconds:.3g} s per round, {left} left')
      _log(': '.join([f'round {done}/{self._total}', *([', '.join(parts)] if parts else [])]))
    if not done:
      self._begin(done)

  def restore(self, rounds_done: int, state: Any) -> None:
    self._begin(rounds_done)

  def _begin(self, rounds_done: int) -> None:
    """Notes the number of rounds before this process."""
    self._begun = rounds_done
    if rounds_done < self._total:
      _log('compiling the first round')


def _measured_text(
    test: Optional[evaluation.Evaluation], sample: Optional[evaluation.Evaluation]
) -> str:
  """Returns loss and accuracy on the set that all lines have, and on all test examples."""
  of_lines = sample or test
  text = f'loss {of_lines.loss:.4f}, accuracy {100 * of_lines.accuracy:.2f} %'
  if not (test and sample):
    return text
  return f'{text} on a sample ({100 * test.accuracy:.2f} % on all test examples)'


def all_of(
    metrics: Metrics, experiment: experiment_lib.Experiment, out: run_directory.RunDirectory,
    manager: Optional[tff.program.ReleaseManager],
) -> dict[str, loop.Reporter]:
  """Returns a run's reporters: TensorBoard, the user's `manager`, tables, lines of progress."""
  tensorboard = releases.Releases(
      tff.program.TensorBoardReleaseManager(out.path), lambda report: tagged(metrics.row(report))
  )
  users = {} if manager is None else {'release_manager': releases.Releases(manager, metrics.row)}
  return {'tensorboard': tensorboard, **users, 'metrics': metrics, 'lines': Lines(experiment)}


def tagged(row: dict[str, Any]) -> dict[str, Any]:
  """Returns a row of metrics.csv by TensorBoard's tags, such as test/accuracy; the round is no tag.

  >>> tagged({'round': 1, 'test_loss': 0.5, 'epsilon': 2.0, 'participants': 9})
  {'test/loss': 0.5, 'privacy/epsilon': 2.0, 'round/participants': 9}
  """
  tags = {}
  for name, value in row.items():
    start = next((start for start in _GROUPS if name.startswith(start)), '')
    tags[_GROUPS.get(start, 'round/') + name.removeprefix(start)] = value
  del tags['round/round']
  return tags


def summary_text(
    experiment: experiment_lib.Experiment, summary: dict[str, Any], seconds: float
) -> str:
  """Returns the results of a run whose rounds and evaluations took `seconds`, as lines of text."""
  rounds, total, measured = summary['rounds'], experiment.settings.rounds, summary['measured_round']
  accuracy = finished.accuracy_text(summary, experiment.settings)
  if measured != rounds:
    accuracy += f', last evaluated after round {measured}'
  if experiment.eval_examples is not None and measured not in (0, total):
    accuracy += f', on {experiment.eval_examples:,} random test examples'
  if 'best_test_accuracy' in summary and total:
    best = 100 * summary['best_test_accuracy']
    accuracy += f'; best {best:.2f} % (round {summary["best_round"]})'
  lines = [
      f'\n{rounds} of {total} rounds done' if total else '\nno rounds: the initial weights',
      f'  accuracy   {accuracy}',
      f'  uplink     {summary["uplink_megabytes"]:.4g} MB per client on average',
      f'  time       {datetime.timedelta(seconds=round(seconds))} (h:mm:ss) for rounds and'
      ' evaluations',
  ]
  if not total:
    lines.append(f'  privacy    {plan_lib.NO_ROUNDS}')
  elif experiment.private:
    spent = plan_lib.spent_text(experiment, summary['rounds_charged'])
    lines.append(f'  privacy    {spent}')
  return '\n'.join(lines)


def _log(line: str) -> None:
  print(line, file=sys.stderr, flush=True)
