"""Prints the progress of a run, as a bar or lines, and its summary at the end."""

from collections.abc import Callable
import math
import sys
import threading
import time
from typing import Any

import psutil
import tqdm

from fedsmp_tff.program import loop
from tasks.training import averages
from tasks.training import experiment as experiment_lib
from tasks.training import plan as plan_lib

_SECONDS_BETWEEN_LINES = 10


class Progress(loop.Reporter):
  """A bar with ETA, loss, accuracy and epsilon on a terminal; lines in a file.

  A line follows a measurement, and else the line before after `seconds_per_line`, whatever the
  run does then: TensorFlow optimizes the first round's graphs for many seconds, and a round of a
  large model may take minutes.
  """

  def __init__(self, experiment: experiment_lib.Experiment, seconds_per_line: float):
    """Initializes; `close` ends its thread.

    Args:
      experiment: The run.
      seconds_per_line: The most seconds from one line to the next.
    """
    self._experiment = experiment
    self._seconds_per_line = seconds_per_line
    self._doing = 'compiling'
    self._done = 0
    self._bar = tqdm.tqdm(
        total=experiment.settings.rounds,
        unit='round',
        dynamic_ncols=True,
        disable=None,
    )
    self._first = 0
    # When the first round of this process began, and when the last one was done.
    self._begun = self._ended = math.nan
    self._last_line = time.monotonic()
    self._measured = self._spent = ''
    self._closed = threading.Event()
    if self._bar.disable:
      self._thread = threading.Thread(target=self._beat, daemon=True, name='progress')
      self._thread.start()

  def during(self, evaluate: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
    """Returns `evaluate` for `loop.run`; progress lines show meanwhile that it measures."""

    def evaluate_with_progress(rounds_done, weights):
      self._done, self._doing, self._ended = rounds_done, 'measuring', time.monotonic()
      return evaluate(rounds_done, weights)

    return evaluate_with_progress

  def __call__(self, report: loop.RoundReport) -> None:
    done, total = report.rounds_done, self._experiment.settings.rounds
    self._done, self._doing, self._ended = done, '', time.monotonic()
    if done == self._first:
      self._begun = self._ended
    if report.evaluation is not None:
      measured = report.evaluation[averages.LAST]
      self._measured = (
          f'loss {measured.loss:.4f}, accuracy {100 * measured.accuracy:.2f} %'
      )
    text = self._measured
    if self._experiment.private:
      if report.evaluation is not None:
        epsilon = self._experiment.spec.epsilon(rounds=report.rounds_charged)
        self._spent = f', epsilon {epsilon:.3g}'
        if self._experiment.verdict != 'valid':
          self._spent += f' {self._experiment.verdict}'
      text += self._spent
    if not self._bar.disable:
      self._bar.set_postfix_str(text, refresh=False)
      self._bar.update(done - self._bar.n)
      self._bar.refresh()
      return
    since = time.monotonic() - self._last_line
    if report.evaluation is not None and (
        since >= _SECONDS_BETWEEN_LINES or done in (0, total)
    ):
      self._say(text)

  def _say(self, text: str) -> None:
    """Prints a line: the round, what is known, seconds a round and the time left."""
    self._last_line = time.monotonic()
    done, total = self._done, self._experiment.settings.rounds
    parts = [text] if text else []
    run = done - self._first
    if run and not math.isnan(self._begun):
      seconds = (self._ended - self._begun) / run
      left = tqdm.tqdm.format_interval(seconds * (total - done))
      parts += [f'{seconds:.3g} s a round', f'{left} left']
    print(f'round {done}/{total}: {", ".join(parts)}', file=sys.stderr, flush=True)

  def _beat(self) -> None:
    """Sees to it that a line comes after every `seconds_per_line`."""
    while not self._closed.wait(
        max(self._last_line + self._seconds_per_line - time.monotonic(), 0)
    ):
      if time.monotonic() - self._last_line >= self._seconds_per_line:
        last = self._done == self._experiment.settings.rounds
        self._say(self._doing or ('writing' if last else f'in round {self._done + 1}'))

  def restore(self, rounds_done: int, state: Any) -> None:
    self._first = self._bar.initial = self._done = rounds_done
    self._begun = time.monotonic()
    self._bar.update(rounds_done - self._bar.n)

  def close(self) -> None:
    self._closed.set()
    if self._bar.disable:
      self._thread.join()
    self._bar.close()


def summary_text(
    experiment: experiment_lib.Experiment, summary: dict[str, Any], seconds: float
) -> str:
  """Returns the results of a run that took `seconds`, for people."""
  rounds = summary['rounds']
  lines = [f'\n{rounds} of {experiment.settings.rounds} rounds done']
  measured = summary['measured_round']
  last = 'final' if measured == rounds else f'not measured after round {measured}, there'
  sample = experiment.cadence.eval_examples
  if sample is None or measured == experiment.settings.rounds:
    of_sample = ''
  else:
    of_sample = f', of {sample:,} random test examples'
  lines += [
      f'  accuracy   best {100 * summary["best_test_accuracy"]:.2f} % (round'
      f' {summary["best_round"]}{of_sample}), {last} {100 * summary["final_test_accuracy"]:.2f} %',
      *[
          f'             {100 * summary[name]:.2f} % of the weights\' {text}'
          for name, text in (
              ('final_test_accuracy_exponential', 'exponential average'),
              ('final_test_accuracy_tail', 'mean over the second half'),
          )
          if name in summary
      ],
      f'  uplink     {summary["uplink_megabytes"]:.4g} MB a client on average',
      f'  time       {duration_text(seconds_since_start())} since this command began; all rounds and'
      f' measurements of the run took {duration_text(seconds)}',
  ]
  if experiment.private:
    charged = summary['rounds_charged']
    lines.append(f'  privacy    {plan_lib.spent_text(experiment, charged)}')
    if (hypothetical := plan_lib.hypothetical_text(experiment, charged)) is not None:
      lines.append(f'             {hypothetical}')
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
