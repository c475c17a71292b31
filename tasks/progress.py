"""What a run says while it goes on, and when it ends: files, a bar or lines, a summary."""

import math
import sys
import time
from typing import Any

import tqdm

from fedsmp_tff import program
from tasks import output
from tasks import plan as plan_lib

_SECONDS_BETWEEN_LINES = 10


class MetricsWriter:
  """Turns round reports into the rows of metrics.csv and timings.csv."""

  def __init__(self, plan: plan_lib.Plan, out: output.RunDirectory):
    self._plan = plan
    self._out = out
    self._rounds = 0
    self._best = None
    self._last = None

  def __call__(self, report: program.RoundReport) -> None:
    self._rounds = report.rounds_done
    measured = report.evaluation
    if measured is not None:
      self._last = measured
      if self._best is None or measured.accuracy > self._best[0]:
        self._best = measured.accuracy, report.rounds_done
    counts = report.metrics['aggregator'] if report.metrics else {}
    epsilons = self._plan.epsilons(report.rounds_done)
    self._out.add_metrics({
        'round': report.rounds_done,
        'test_loss': measured and measured.loss,
        'test_accuracy': measured and measured.accuracy,
        'best_test_accuracy': self._best and self._best[0],
        **{f'epsilon_{name}': value for name, value in epsilons.items()},
        'uplink_megabytes': self._plan.uplink_megabytes(report.rounds_done),
        **{
            name: int(counts[name]) if counts else None
            for name in self._plan.mechanism.max_input._fields
            if name != 'values'
        },
    })
    self._out.add_timings({
        'round': report.rounds_done,
        'round_seconds': round(report.round_seconds, 3),
        'evaluation_seconds': round(report.evaluation_seconds, 3),
    })

  def summary(self, seconds: float) -> dict[str, Any]:
    """What the run came to, for summary.json; `seconds` is the time it took."""
    return {
        'rounds': self._rounds,
        'best_test_accuracy': self._best and self._best[0],
        'best_round': self._best and self._best[1],
        'final_test_accuracy': self._last and self._last.accuracy,
        'final_test_loss': self._last and self._last.loss,
        'epsilon': self._plan.epsilons(self._rounds) or None,
        'uplink_megabytes': self._plan.uplink_megabytes(self._rounds),
        'seconds': round(seconds, 1),
    }


class Progress:
  """A bar with ETA, loss, accuracy and epsilon on a terminal; lines in a file."""

  def __init__(self, plan: plan_lib.Plan):
    self._plan = plan
    self._bar = tqdm.tqdm(
        total=plan.settings.rounds,
        unit='round',
        dynamic_ncols=True,
        disable=None,
    )
    self._start = time.monotonic()
    self._last_line = -math.inf
    self._measured = ''

  def __call__(self, report: program.RoundReport) -> None:
    done, total = report.rounds_done, self._plan.settings.rounds
    if report.evaluation is not None:
      self._measured = (
          f'loss {report.evaluation.loss:.4f},'
          f' accuracy {100 * report.evaluation.accuracy:.2f} %'
      )
    text = self._measured
    if self._plan.spending is not None:
      epsilon = self._plan.spending.epsilon('fixed_size', done)
      text += f', epsilon {epsilon:.3g}'
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
    eta = (now - self._start) / done * (total - done) if done else math.nan
    left = '' if math.isnan(eta) else f', {tqdm.tqdm.format_interval(eta)} left'
    print(f'round {done}/{total}: {text}{left}', file=sys.stderr, flush=True)

  def close(self) -> None:
    self._bar.close()


def summary_text(plan: plan_lib.Plan, summary: dict[str, Any]) -> str:
  """What a run came to, for people."""
  rounds = summary['rounds']
  lines = [f'\n{rounds} of {plan.settings.rounds} rounds done']
  if summary['final_test_accuracy'] is not None:
    lines.append(
        f'  accuracy   best {100 * summary["best_test_accuracy"]:.2f} % (round'
        f' {summary["best_round"]}), final'
        f' {100 * summary["final_test_accuracy"]:.2f} %'
    )
  minutes = tqdm.tqdm.format_interval(summary['seconds'])
  lines += [
      f'  uplink     {summary["uplink_megabytes"]:.4g} MB a client on average',
      f'  time       {minutes}',
  ]
  if plan.spending is not None:
    lines += ['', *plan_lib.privacy_lines(plan, rounds)]
  return '\n'.join(lines)
