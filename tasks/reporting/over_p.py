"""Draws the paper's Figure 3: loss and accuracy over p, with noise and without."""

from collections.abc import Sequence
from typing import Optional

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
import numpy as np

from tasks import methods
from tasks.cli import plugins
from tasks.experiments import paper_tables
from tasks.reporting import canvas
from tasks.reporting import results
from tasks.reporting import styles

# Minimum number of points of a curve.
_MIN_POINTS = 3
# Least ratio of two ticks.
_TICK_RATIO = 1.7
# The curves of Figure 3 with and without noise: the equivalent at p = 1, and (method, unscaled).
_OVER_P = {
    dense: ((f'{prefix}_topk', False), (f'{prefix}_randk', False), (f'{prefix}_randk', True))
    for dense, prefix in (('dp_fedavg', 'fedsmp'), ('fedavg', 'fedavg'))
}
_TEST_LOSS = (
    'The loss is on the test set. The paper shows the training loss of the sampled clients, which'
    ' is a function of their data that no epsilon covers, so that no run releases it; the shape of'
    ' the curves can be compared, their level can not. '
)


def draw(task: str, groups: Sequence[results.Group]) -> Optional[mpl_figure.Figure]:
  """Returns Figure 3: loss and accuracy over p in the paper's setting, with noise and without."""
  if paper_tables.identity(task, 'dp_fedavg') is None:
    return None
  sigma = paper_tables.settings_for(task).noise_multiplier
  used, curves_by_panel = [], {}
  for dense, masked in _OVER_P.items():
    level = sigma if methods.METHODS[dense].private else None
    # The longest run at each p.
    comparable = sorted(
        (
            group for group in groups
            if group.in_paper_setting and paper_tables.is_same_sigma(group.noise_multiplier, level)
        ),
        key=lambda group: group.rounds_done,
    )
    curves = {
        method: sorted({
            group.p: group for group in comparable
            if (group.config['algorithm'], group.unscaled) in (method, (dense, False))
        }.items())
        for method in masked
    }
    curves = {method: points for method, points in curves.items() if len(points) >= _MIN_POINTS}
    if curves:
      curves_by_panel[dense] = curves
      used += {id(group): group for points in curves.values() for _, group in points}.values()
  if not used:
    return None
  figure = canvas.new_figure(task, 'loss and accuracy over p', rows=len(curves_by_panel))
  rows = figure.subplots(len(curves_by_panel), 2, squeeze=False, sharex=True)
  ratios = set()
  for axes, (dense, curves) in zip(rows, curves_by_panel.items()):
    ratios |= _draw_row(*axes, task, dense, curves)
  ticks: list[float] = []
  for p in sorted(ratios, reverse=True):
    if not ticks or ticks[-1] / p > _TICK_RATIO:
      ticks.append(p)
  for axes in rows[-1]:
    axes.set_xlabel('compression ratio p')
    axes.set_xticks(ticks, [f'{p:g}' for p in ticks], fontsize='x-small')
  return canvas.finish(figure, used, _TEST_LOSS)


def _draw_row(
    loss_axes: mpl_axes.Axes, accuracy_axes: mpl_axes.Axes, task: str, dense: str,
    curves: dict[tuple[str, bool], list[tuple[float, results.Group]]],
) -> set[float]:
  """Draws a row of Figure 3, whose curves end in DP-FedAvg or FedAvg at p = 1; returns all p."""
  noise = 'with' if methods.METHODS[dense].private else 'without'
  loss_axes.set(ylabel=f'final test loss,\n{noise} noise', xscale='log')
  accuracy_axes.set(ylabel='best accuracy (%)', xscale='log')
  for axes in (loss_axes, accuracy_axes):
    axes.minorticks_off()
  handles, drawn_ratios = {}, set()
  at_1 = styles.style_of(dense).line(linestyle='none', markersize=5, zorder=5)
  for (algorithm, unscaled), points in curves.items():
    style, ratios = styles.style_of(algorithm, unscaled), [p for p, _ in points]
    for axes, value in ((loss_axes, 'loss'), (accuracy_axes, 'best')):
      means, stds = canvas.means_and_stds([group for _, group in points], value)
      # No bar for one seed.
      stds[stds == 0] = np.nan
      axes.errorbar(ratios, means, yerr=stds, capsize=3, **style.line())
      if ratios[-1] == 1:
        axes.plot(1, means[-1], **at_1)
    label = plugins.title(algorithm, methods.METHODS) + results.UNSCALED * unscaled
    handles[label] = mpl_lines.Line2D([], [], **style.line())
    paper = {
        row.p: row.accuracy for row in paper_tables.summaries()
        if row.task == task and row.algorithm in (algorithm, dense)
    }
    # Without noise the paper prints the accuracy at p = 1 alone.
    is_curve = len(paper) > 1
    label = f'the paper: {plugins.title(algorithm if is_curve else dense, methods.METHODS)}'
    # The paper's points stand for both readings of rand-k: draw them once.
    if paper and label not in handles:
      drawn = style.line(linewidth=0.8) if is_curve else dict(at_1)
      drawn |= dict(markerfacecolor='none', alpha=0.7)
      accuracy_axes.plot(*zip(*sorted(paper.items())), **drawn)
      handles[label] = mpl_lines.Line2D([], [], **drawn)
    drawn_ratios |= {*ratios, *paper}
  if any(1 in dict(points) for points in curves.values()):
    handles[f'{plugins.title(dense, methods.METHODS)}: p = 1'] = mpl_lines.Line2D([], [], **at_1)
  accuracy_axes.legend(
      handles.values(), handles, loc='center left', bbox_to_anchor=(1.02, 0.5), frameon=False,
      fontsize='x-small', handlelength=3.2,
  )
  return drawn_ratios
