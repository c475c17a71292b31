"""Draws the paper's two figures from runs, over rounds and over p, and an ablation."""

from collections.abc import Sequence
import itertools
import textwrap
from typing import Optional

import matplotlib
from matplotlib import figure as mpl_figure
from matplotlib import ticker
import numpy as np

from tasks import datasets
from tasks import systems
from tasks.cli import grids
from tasks.cli import paper_tables
from tasks.reporting import results

# Readers with color blindness can distinguish these colors.
_COLORS = matplotlib.color_sequences['petroff10']
_WIDTH, _HEIGHT, _HEIGHT_PER_LINE = 9.2, 3.4, 0.2
_CHARACTERS_PER_LINE = 140
# Minimum number of steps of an ablation, and of points of a curve over p.
_MIN_POINTS = 3
_PERCENT_BELOW = 25
# The curves of Figure 3: a system with masks, its equivalent at p = 1, and `Group.unscaled`.
_OVER_P = (
    ('fedsmp_topk', 'dp_fedavg', False), ('fedsmp_randk', 'dp_fedavg', False),
    ('fedsmp_randk', 'dp_fedavg', True), ('fedavg_topk', 'fedavg', False),
    ('fedavg_randk', 'fedavg', False), ('fedavg_randk', 'fedavg', True),
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
  """Returns Figure 2: accuracy over rounds and over the uplink."""
  ranked = sorted(groups, key=lambda group: group.mean('final'))
  best = {group.label: group for group in ranked}
  if len(best) > len(_COLORS):
    best = {group.system: group for group in ranked}
  order = [*systems.SYSTEMS.names, *(group.config['algorithm'] for group in groups)]
  drawn = sorted(best.values(), key=lambda group: order.index(group.config['algorithm']))
  if not any(group.rounds_done for group in drawn):
    return None
  figure = _new_figure(task, 'accuracy over rounds and uplink')
  by_round, by_uplink = figure.subplots(1, 2, sharey=True)
  for color, group in zip(itertools.cycle(_COLORS), drawn):
    rounds, accuracy, spread = group.curve('test_accuracy')
    label = f'{group.label}: {accuracy[-1]:.1f} %'
    if not group.rounds_done:  # Without rounds it is a level.
      for axes, text in ((by_round, label), (by_uplink, None)):
        axes.axhline(accuracy[-1], color=color, linestyle=':', label=text)
      continue
    _, uplink, _ = group.curve('uplink_megabytes')
    # A logarithmic scale has no zero, the uplink before the first round.
    uplink[uplink == 0] = np.nan
    for axes, x, text in ((by_round, rounds, label), (by_uplink, uplink, None)):
      axes.plot(x, accuracy, color=color, label=text)
      axes.fill_between(
          x, accuracy - spread, accuracy + spread, color=color, alpha=0.2, linewidth=0
      )
  # Without a warm start the first rounds are steep, and differ least between systems.
  lowest = min(group.mean('final') for group in drawn) - _PERCENT_BELOW
  by_round.set(
      xlabel='round', ylabel='accuracy (%)', ylim=(max(0, lowest, by_round.get_ylim()[0]), None)
  )
  by_uplink.set(xlabel='uplink per client (MB)', xscale='log')
  # The default labels, such as 2 x 10^0, overlap if the values span about a decade.
  by_uplink.xaxis.set_major_formatter(ticker.LogFormatter())
  by_uplink.xaxis.set_minor_formatter(ticker.LogFormatter())
  note = f'{len(drawn)} of {len(groups)} configurations, the best of each kind; '
  return _finish(figure, drawn, note)


def _over_p(task: str, groups: Sequence[results.Group]) -> Optional[mpl_figure.Figure]:
  """Returns Figure 3: loss and accuracy over p in the paper's setting, with noise and without."""
  if not (cells := [*itertools.chain(*_grid(f'paper/{task}'))]):
    return None
  identities = {
      (cell.settings.algorithm, results.is_unscaled(cell.identity)): cell.identity for cell in cells
  }
  paper = paper_tables.settings_of(task)
  figure, used = _new_figure(task, 'loss and accuracy over p'), []
  loss_axes, accuracy_axes = figure.subplots(1, 2)
  for color, (*algorithms, unscaled) in zip(_COLORS, _OVER_P):
    masked, dense = (systems.SYSTEMS[algorithm] for algorithm in algorithms)
    title = masked.title + results.UNSCALED * unscaled
    sigma = paper.noise_multiplier if masked.private else None
    # The longest run at each p.
    points = {
        group.p: group for group in sorted(groups, key=lambda group: group.rounds_done)
        if (group.config['algorithm'], group.unscaled) in (
            (masked.name, unscaled), (dense.name, False)
        )
        and paper_tables.is_same_sigma(group.noise_multiplier, sigma)
        and not group.differences(identities[group.config['algorithm'], group.unscaled])
    }
    if len(points) < _MIN_POINTS:
      continue
    ratios, drawn = zip(*sorted(points.items()))
    for axes, value, label in (
        (loss_axes, 'loss', f'{title}; at p = 1 {dense.title}'),
        (accuracy_axes, 'best', None),
    ):
      means, stds = _means_and_stds(drawn, value)
      axes.errorbar(ratios, means, yerr=stds, fmt='o-', color=color, capsize=3, label=label)
    of_paper = {
        # Tables 1 to 3, which come last here, replace the misprints of later tables.
        row.p: row.accuracy for row in reversed(paper_tables.rows())
        if row.task == task and row.algorithm in algorithms
        and paper_tables.is_same_sigma(row.noise_multiplier, sigma)
    }
    label = f'{masked.title}: the paper, {paper.rounds:,} rounds'
    # The paper's points stand for both readings of rand-k: draw them once.
    is_drawn = label in accuracy_axes.get_legend_handles_labels()[1]
    if (paper_points := sorted(of_paper.items())) and not is_drawn:
      accuracy_axes.plot(*zip(*paper_points), 'o:', color=color, markerfacecolor='none', label=label)
    used += drawn
  loss_axes.set(xlabel='compression ratio p', ylabel='final test loss', xscale='log')
  accuracy_axes.set(xlabel='compression ratio p', ylabel='best accuracy (%)', xscale='log')
  return _finish(figure, used) if used else None


def _means_and_stds(groups: Sequence[results.Group], value: str) -> tuple[np.ndarray, np.ndarray]:
  pairs = [group.mean_and_std(value) for group in groups]
  return np.array([mean for mean, _ in pairs]), np.array([std or 0.0 for _, std in pairs])


def _new_figure(task: str, title: str) -> mpl_figure.Figure:
  figure = mpl_figure.Figure(figsize=(_WIDTH, _HEIGHT), dpi=160, layout='constrained')
  title = f'{datasets.TASKS.title(task)}: {title}'
  figure.suptitle(title, fontsize='medium', fontweight='bold')
  return figure


def _finish(
    figure: mpl_figure.Figure, groups: Sequence[results.Group], note: str = '',
    spread: str = 'stddev',
) -> mpl_figure.Figure:
  """Adds a legend and a note on rounds, seeds, epsilon and spread; returns the figure."""
  note += f'rounds: {_range([n for group in groups if (n := group.rounds_done)])}'
  note += f'; seeds per configuration: {_range([len(group.runs) for group in groups])}'
  validated = any(group.uses_validation_set for group in groups)
  note += f'; accuracy on the {"validation" if validated else "test"} set'
  private = [group for group in groups if group.noise_multiplier]
  if epsilons := [epsilon for g in private if not np.isnan(epsilon := g.mean('epsilon'))]:
    is_seeded = any(group.config['seed'] is not None for group in private)
    note += f'; epsilon ({"simulated" if is_seeded else "valid"}): {_range(epsilons)}'
  if any(group.config['sampled'] for group in groups):
    note += '; between the first and the last round: the gain on random examples'
  if any(len(group.runs) > 1 for group in groups):
    note += f'; bands and bars: one {spread} over seeds'
  note = textwrap.fill(note, _CHARACTERS_PER_LINE)
  for axes in figure.axes:
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
  handles = [handle for axes in figure.axes for handle in axes.get_legend_handles_labels()[0]]
  # The note is the title of the legend, because two texts below the panels would overlap.
  figure.legend(
      handles=handles, loc='outside lower center', ncols=2, frameon=False, fontsize='small',
      title=note, title_fontsize='small',
  )
  lines = len(handles) / 2 + note.count('\n') + 2
  figure.set_figheight(_HEIGHT + _HEIGHT_PER_LINE * lines)
  return figure


def _range(values: Sequence[float]) -> str:
  low, high = (
      f'{value:,}' if isinstance(value, int) else f'{value:.3g}'
      for value in (min(values), max(values))
  )
  return low if low == high else f'{low} to {high}'
