"""Draws the paper's two figures from runs, over rounds and over p, and an ablation."""

from collections.abc import Sequence
import textwrap
from typing import Optional

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
from matplotlib import ticker
import numpy as np

from tasks import datasets
from tasks import systems
from tasks.cli import grids
from tasks.cli import paper_tables
from tasks.cli import plugins
from tasks.reporting import results
from tasks.reporting import styles

_WIDTH, _HEIGHT, _HEIGHT_PER_LINE = 9.2, 3.4, 0.2
_CHARACTERS_PER_LINE = 180
# Minimum number of steps of an ablation, and of points of a curve over p.
_MIN_POINTS = 3
_PERCENT_BELOW = 25
_MAX_CURVES = 6
# Least distance of labels, as a fraction of the height of the axes; of ticks, as a ratio.
_LABEL_HEIGHT, _TICK_RATIO = 0.062, 1.7
# The curves of Figure 3 with and without noise: the equivalent at p = 1, and (system, unscaled).
_OVER_P = {
    dense: ((f'{prefix}_topk', False), (f'{prefix}_randk', False), (f'{prefix}_randk', True))
    for dense, prefix in (('dp_fedavg', 'fedsmp'), ('fedavg', 'fedavg'))
}
_TEST_LOSS = (
    'The loss is on the test set. The paper shows the training loss of the sampled clients, which'
    ' is a function of their data that no epsilon covers, so that no run releases it; the shape of'
    ' the curves can be compared, their level can not. '
)


def of_task(groups: Sequence[results.Group]) -> dict[str, mpl_figure.Figure]:
  """Returns the figures for which the runs of one task have points, by name.

  Args:
    groups: One or more groups of runs of one task.

  Returns:
    The ablation, if three steps of the grid ablation/TASK were run; Figure 2; Figure 3, if a system
    has complete runs at three p with the other flags of the grid paper/TASK.
  """
  task = groups[0].config['task']
  complete = [group for group in groups if group.complete]
  figures = {
      'ablation': _ablation(task, complete),
      'rounds': _over_rounds(task, groups),
      'ratio': _over_p(task, complete),
  }
  return {f'{task}_{name}': figure for name, figure in figures.items() if figure is not None}


def _grid(name: str) -> list[list[grids.Cell]]:
  return grids.read(name) if name in grids.names() else []


def _ablation(task: str, groups: Sequence[results.Group]) -> Optional[mpl_figure.Figure]:
  """Returns final accuracy in the grid ablation/TASK, over the seeds that all of its rows share.

  A line joins the rows of the first paragraph, the steps; the others are baselines.
  """
  paragraphs = [
      {
          cell.title: group for cell in cells for group in groups
          if not group.differences(cell.identity, ignored=('seed',))
      }
      for cells in _grid(f'ablation/{task}')
  ]
  rows = [group for paragraph in paragraphs for group in paragraph.values()]
  seeds = [{run.config['seed'] for run in group.runs} for group in rows]
  if not rows or len(paragraphs[0]) < _MIN_POINTS or not (shared := set.intersection(*seeds)):
    return None
  figure = _new_figure(task, 'ablation, one component more per row')
  axes, ticks, used = figure.subplots(), [], []
  for paragraph in paragraphs:
    part = [
        results.Group(tuple(run for run in group.runs if run.config['seed'] in shared))
        for group in paragraph.values()
    ]
    means, stds = _means_and_stds(part, 'final')
    heights = -np.arange(len(used), len(used) + len(part))
    bars = stds / len(shared) ** 0.5
    axes.errorbar(means, heights, xerr=bars, fmt='o' if used else 'o-', capsize=3)
    ticks += [f'{title}: {mean:.1f} %' for title, mean in zip(paragraph, means)]
    used += part
  axes.set_yticks(-np.arange(len(ticks)), ticks)
  axes.set_xlabel('final accuracy (%)')
  return _finish(figure, used, spread='standard error')


def _over_rounds(task: str, groups: Sequence[results.Group]) -> Optional[mpl_figure.Figure]:
  """Returns Figure 2: accuracy over rounds and over the uplink.

  If there are many labels, each style has one group: the paper's, if it was run with the p that the
  paper draws and in its setting; otherwise the best, with noise before without.
  """
  target = paper_tables.TARGETS.get(task)

  def rank(group):
    algorithm, sigma = group.config['algorithm'], group.noise_multiplier
    is_of_paper = (
        bool(target) and target.p.get(algorithm, 1.0) == group.p
        and group.complete and group.in_paper_setting
        and any(row.is_of(task, algorithm, group.p, sigma) for row in _summaries())
    )
    return is_of_paper, sigma is not None, group.mean('final')

  ranked = sorted(groups, key=rank)
  best = [*{group.label: group for group in ranked}.values()]
  if len(best) > _MAX_CURVES:
    best = [members[-1] for members in styles.by_system(ranked).values()]
  styled = [(style, group) for style, members in styles.by_system(best).items() for group in members]
  drawn = [group for _, group in styled]
  if not any(group.rounds_done for group in drawn):
    return None
  is_one_level = len({group.noise_multiplier for group in drawn} - {None}) <= 1
  figure = _new_figure(task, 'accuracy over rounds and uplink')
  by_round, by_uplink = panels = figure.subplots(1, 2, sharey=True)
  ends = []
  for style, group in styled:
    rounds, accuracy, spread = group.curve('test_accuracy')
    label = group.short_label if is_one_level else group.label
    ends.append((accuracy[-1], f'{label}: {accuracy[-1]:.1f} %', style.color))
    if not group.rounds_done:  # Without rounds it is a level.
      for axes in panels:
        axes.axhline(accuracy[-1], **style.line(linewidth=1))
      continue
    _, uplink, _ = group.curve('uplink_megabytes')
    # A logarithmic scale has no zero, the uplink before the first round.
    uplink[uplink == 0] = np.nan
    for axes, x in ((by_round, rounds), (by_uplink, uplink)):
      axes.plot(x, accuracy, **style.line(markevery=max(1, len(x) // 7)))
      axes.fill_between(
          x, accuracy - spread, accuracy + spread, color=style.color, alpha=0.2, linewidth=0
      )
  # Without a warm start the first rounds are steep, and differ least between systems.
  lowest = min(group.mean('final') for group in drawn) - _PERCENT_BELOW
  if target and any(group.can_measure_uplink_to(target.accuracy) for group in drawn):
    lowest = min(lowest, target.accuracy - _PERCENT_BELOW)
    for axes in panels:
      axes.axhline(target.accuracy, color='0.4', linewidth=0.7, zorder=0)
    by_round.annotate(
        f'the paper\'s target: {target.accuracy:g} %', (1, target.accuracy), (0, -3),
        by_round.get_yaxis_transform(), 'offset points', ha='right', va='top',
        fontsize='x-small', color='0.4',
    )
  by_round.set(
      xlabel='round', ylabel='accuracy (%)', ylim=(max(0, lowest, by_round.get_ylim()[0]), None)
  )
  by_uplink.set(xlabel='uplink per client (MB)', xscale='log')
  # The default labels, such as 2 x 10^0, overlap if the values span about a decade.
  low, high = by_uplink.get_xlim()
  by_uplink.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 30 * low else (1,)))
  by_uplink.xaxis.set_major_formatter('{x:g}')
  by_uplink.xaxis.set_minor_formatter(ticker.NullFormatter())
  _label_ends(by_round, ends)
  note = f'{len(drawn)} of {len(groups)} configurations: of each system the paper\'s or the best'
  return _finish(figure, drawn, f'{note}; ')


def _label_ends(axes: mpl_axes.Axes, ends: Sequence[tuple[float, str, str]]) -> None:
  """Writes (height, text, color) to the right of axes, at the ends of lines but not overlapping."""
  low, high = axes.get_ylim()
  ends, blocks = sorted(ends), []
  # Labels that would overlap become a block, around the mean of the heights that they want.
  for i, (height, *_) in enumerate(ends):
    blocks.append([np.clip((height - low) / (high - low), 0, 1) - i * _LABEL_HEIGHT])
    while len(blocks) > 1 and np.mean(blocks[-2]) >= np.mean(blocks[-1]):
      blocks[-2:] = [blocks[-2] + blocks[-1]]
  steps = _LABEL_HEIGHT * np.arange(len(ends))
  placed = np.concatenate([[np.mean(block)] * len(block) for block in blocks]) + steps
  placed = np.clip(placed, steps, 1 - steps[::-1])
  for (height, text, color), y in zip(ends, placed):
    axes.annotate(
        text, (1, np.clip(height, low, high)), (1.05, y), axes.get_yaxis_transform(),
        axes.transAxes, va='center', fontsize='x-small', color=color,
        arrowprops=dict(arrowstyle='-', color=color, linewidth=0.6, relpos=(0, 0.5), shrinkB=0),
    )


def _over_p(task: str, groups: Sequence[results.Group]) -> Optional[mpl_figure.Figure]:
  """Returns Figure 3: loss and accuracy over p in the paper's setting, with noise and without."""
  if paper_tables.identity(task, 'dp_fedavg') is None:
    return None
  sigma = paper_tables.settings_of(task).noise_multiplier
  used, curves_by_panel = [], {}
  for dense, masked in _OVER_P.items():
    level = sigma if systems.SYSTEMS[dense].private else None
    # The longest run at each p.
    comparable = sorted(
        (
            group for group in groups
            if group.in_paper_setting and paper_tables.is_same_sigma(group.noise_multiplier, level)
        ),
        key=lambda group: group.rounds_done,
    )
    curves = {
        system: sorted({
            group.p: group for group in comparable
            if (group.config['algorithm'], group.unscaled) in (system, (dense, False))
        }.items())
        for system in masked
    }
    curves = {system: points for system, points in curves.items() if len(points) >= _MIN_POINTS}
    if curves:
      curves_by_panel[dense] = curves
      used += {id(group): group for points in curves.values() for _, group in points}.values()
  if not used:
    return None
  figure = _new_figure(task, 'loss and accuracy over p', rows=len(curves_by_panel))
  rows = figure.subplots(len(curves_by_panel), 2, squeeze=False, sharex=True)
  ratios = set()
  for axes, (dense, curves) in zip(rows, curves_by_panel.items()):
    ratios |= _draw_over_p(*axes, task, dense, curves)
  ticks: list[float] = []
  for p in sorted(ratios, reverse=True):
    if not ticks or ticks[-1] / p > _TICK_RATIO:
      ticks.append(p)
  for axes in rows[-1]:
    axes.set_xlabel('compression ratio p')
    axes.set_xticks(ticks, [f'{p:g}' for p in ticks], fontsize='x-small')
  return _finish(figure, used, _TEST_LOSS)


def _draw_over_p(
    loss_axes: mpl_axes.Axes, accuracy_axes: mpl_axes.Axes, task: str, dense: str,
    curves: dict[tuple[str, bool], list[tuple[float, results.Group]]],
) -> set[float]:
  """Draws a row of Figure 3, whose curves end in DP-FedAvg or FedAvg at p = 1; returns all p."""
  noise = 'with' if systems.SYSTEMS[dense].private else 'without'
  loss_axes.set(ylabel=f'final test loss,\n{noise} noise', xscale='log')
  accuracy_axes.set(ylabel='best accuracy (%)', xscale='log')
  for axes in (loss_axes, accuracy_axes):
    axes.minorticks_off()
  handles, drawn_ratios = {}, set()
  at_1 = styles.of(dense).line(linestyle='none', markersize=5, zorder=5)
  for (algorithm, unscaled), points in curves.items():
    style, ratios = styles.of(algorithm, unscaled), [p for p, _ in points]
    for axes, value in ((loss_axes, 'loss'), (accuracy_axes, 'best')):
      means, stds = _means_and_stds([group for _, group in points], value)
      # No bar for one seed.
      stds[stds == 0] = np.nan
      axes.errorbar(ratios, means, yerr=stds, capsize=3, **style.line())
      if ratios[-1] == 1:
        axes.plot(1, means[-1], **at_1)
    label = plugins.title(algorithm, systems.SYSTEMS) + results.UNSCALED * unscaled
    handles[label] = mpl_lines.Line2D([], [], **style.line())
    paper = {
        row.p: row.accuracy for row in _summaries()
        if row.task == task and row.algorithm in (algorithm, dense)
    }
    # Without noise the paper prints the accuracy at p = 1 alone.
    is_curve = len(paper) > 1
    label = f'the paper: {plugins.title(algorithm if is_curve else dense, systems.SYSTEMS)}'
    # The paper's points stand for both readings of rand-k: draw them once.
    if paper and label not in handles:
      drawn = style.line(linewidth=0.8) if is_curve else dict(at_1)
      drawn |= dict(markerfacecolor='none', alpha=0.7)
      accuracy_axes.plot(*zip(*sorted(paper.items())), **drawn)
      handles[label] = mpl_lines.Line2D([], [], **drawn)
    drawn_ratios |= {*ratios, *paper}
  if 1 in drawn_ratios:
    handles[f'{plugins.title(dense, systems.SYSTEMS)}: p = 1'] = mpl_lines.Line2D([], [], **at_1)
  accuracy_axes.legend(
      handles.values(), handles, loc='center left', bbox_to_anchor=(1.02, 0.5), frameon=False,
      fontsize='x-small', handlelength=3.2,
  )
  return drawn_ratios


def _summaries() -> list[paper_tables.Row]:
  return [row for row in paper_tables.rows() if row.table in paper_tables.SUMMARIES]


def _means_and_stds(groups: Sequence[results.Group], value: str) -> tuple[np.ndarray, np.ndarray]:
  pairs = [group.mean_and_std(value) for group in groups]
  return np.array([mean for mean, _ in pairs]), np.array([std or 0.0 for _, std in pairs])


def _new_figure(task: str, title: str, rows: int = 1) -> mpl_figure.Figure:
  figure = mpl_figure.Figure(figsize=(_WIDTH, _HEIGHT * rows), dpi=160, layout='constrained')
  title = f'{plugins.title(task, datasets.TASKS)}: {title}'
  figure.suptitle(title, fontsize='medium', fontweight='bold')
  return figure


def _finish(
    figure: mpl_figure.Figure, groups: Sequence[results.Group], note: str = '',
    spread: str = 'stddev',
) -> mpl_figure.Figure:
  """Adds a note on rounds, seeds, epsilon and spread below the panels; returns the figure."""
  note += f'rounds: {_range([n for group in groups if (n := group.rounds_done)])}'
  note += f'; seeds per configuration: {_range([len(group.runs) for group in groups])}'
  validated = any(group.uses_validation_set for group in groups)
  note += f'; accuracy on the {"validation" if validated else "test"} set'
  private = [group for group in groups if group.noise_multiplier]
  if sigmas := [group.noise_multiplier for group in private]:
    note += f'; sigma: {_range(sigmas)}'
  if epsilons := [epsilon for g in private if not np.isnan(epsilon := g.mean('epsilon'))]:
    is_seeded = any(group.config['seed'] is not None for group in private)
    note += f'; epsilon ({"simulated" if is_seeded else "valid"}): {_range(epsilons)}'
  if any(group.config['sampled'] for group in groups):
    note += '; between the first and the last round, accuracy is the initial one plus the gain on a'
    note += ' sample'
  if any(len(group.runs) > 1 for group in groups):
    note += f'; bands and bars: one {spread} over seeds'
  note = textwrap.fill(note, _CHARACTERS_PER_LINE)
  for axes in figure.axes:
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
  figure.supxlabel(note, x=0.01, ha='left', fontsize='x-small', linespacing=1.4)
  figure.set_figheight(figure.get_figheight() + _HEIGHT_PER_LINE * (note.count('\n') + 1))
  return figure


def _range(values: Sequence[float]) -> str:
  low, high = (
      f'{value:,}' if isinstance(value, int) else f'{value:.3g}'
      for value in (min(values), max(values))
  )
  return low if low == high else f'{low} to {high}'
