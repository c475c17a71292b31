"""What a run says while it goes on, and when it ends: files, a bar or lines, a summary."""

import math
import sys
import time
from typing import Any

import tqdm

from fedsmp_tff.program import loop
from tasks.training import averages
from tasks.training import experiment as experiment_lib
from tasks.training import plan as plan_lib

_SECONDS_BETWEEN_LINES = 10


class Progress(loop.Reporter):
  """A bar with ETA, loss, accuracy and epsilon on a terminal; lines in a file."""

  def __init__(self, experiment: experiment_lib.Experiment):
    self._experiment = experiment
    self._bar = tqdm.tqdm(
        total=experiment.settings.rounds,
        unit='round',
        dynamic_ncols=True,
        disable=None,
    )
    self._start = time.monotonic()
    self._first = 0
    self._last_line = -math.inf
    self._measured = self._on_clients = self._spent = ''

  def __call__(self, report: loop.RoundReport) -> None:
    done, total = report.rounds_done, self._experiment.settings.rounds
    if report.evaluation is not None:
      measured = report.evaluation[averages.LAST]
      self._measured = (
          f'loss {measured.loss:.4f}, accuracy {100 * measured.accuracy:.2f} %'
      )
    if report.client_evaluation is not None:
      self._on_clients = f', on clients {_accuracy_text(*report.client_evaluation)}'
    text = self._measured + self._on_clients
    if self._experiment.private:
      if report.evaluation is not None:
        epsilon = self._experiment.spec.epsilon(
            None, report.rounds_charged, report.evaluations_charged
        )
        self._spent = f', epsilon {epsilon:.3g}'
        if self._experiment.settings.seed is not None:
          self._spent += f' {self._experiment.verdict}'
      text += self._spent
    if not self._bar.disable:
      self._bar.set_postfix_str(text, refresh=False)
      self._bar.update(done - self._bar.n)
      self._bar.refresh()
      return
    now = time.monotonic()
    if report.evaluation is None or (
        now - self._last_line < _SECONDS_BETWEEN_LINES and 0 < done < total
    ):
      return
    self._last_line = now
    run = done - self._first
    eta = (now - self._start) / run * (total - done) if run else math.nan
    left = '' if math.isnan(eta) else f', {tqdm.tqdm.format_interval(eta)} left'
    print(f'round {done}/{total}: {text}{left}', file=sys.stderr, flush=True)

  def restore(self, rounds_done: int, state: Any) -> None:
    self._first = self._bar.initial = rounds_done
    self._bar.update(rounds_done - self._bar.n)

  def close(self) -> None:
    self._bar.close()


def summary_text(
    experiment: experiment_lib.Experiment, summary: dict[str, Any], seconds: float
) -> str:
  """What a run came to in `seconds`, for people."""
  rounds = summary['rounds']
  lines = [f'\n{rounds} of {experiment.settings.rounds} rounds done']
  minutes = tqdm.tqdm.format_interval(seconds)
  lines += [
      f'  accuracy   best {100 * summary["best_test_accuracy"]:.2f} % (round'
      f' {summary["best_round"]}), final'
      f' {100 * summary["final_test_accuracy"]:.2f} %',
      *[
          f'             {100 * summary[name]:.2f} % of the weights\' {text}'
          for name, text in (
              ('final_test_accuracy_exponential', 'exponential average'),
              ('final_test_accuracy_tail', 'mean over the second half'),
          )
          if name in summary
      ],
      *(
          [
              '             on clients '
              + _accuracy_text(
                  summary['last_client_accuracy'], summary['last_client_accuracy_stddev']
              )
          ]
          if 'last_client_accuracy' in summary
          else []
      ),
      f'  uplink     {summary["uplink_megabytes"]:.4g} MB a client on average',
      f'  time       {minutes}',
  ]
  if experiment.private:
    lines += [
        f'  randomness {experiment.randomness}',
        '',
        *plan_lib.privacy_lines(
            experiment, summary['rounds_charged'], summary.get('evaluations_charged')
        ),
    ]
  return '\n'.join(lines)


def _accuracy_text(accuracy: float, stddev: float) -> str:
  if math.isnan(accuracy):
    return 'none released'
  return f'{100 * accuracy:.2f} % +- {100 * stddev:.2f} % by noise'
