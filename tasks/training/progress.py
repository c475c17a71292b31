"""Prints the progress of a run, as a bar or lines, and its summary at the end."""

import math
import sys
import time
from typing import Any

import psutil
import tqdm

from fedsmp_tff.program import loop
from tasks.training import experiment as experiment_lib
from tasks.training import plan as plan_lib

# Between rounds, and after measurements.
_SECONDS_PER_LINE, _SECONDS_BETWEEN_MEASURED = 30, 10


class Progress(loop.Reporter):
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
      if self._experiment.verdict != 'valid':
        self._spent += f' {self._experiment.verdict}'
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
