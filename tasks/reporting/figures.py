"""Draws figures from runs: over rounds, over epsilon, an ablation; `over_p` has Figure 3."""

from collections.abc import Sequence
from typing import Optional

from matplotlib import figure as mpl_figure
from matplotlib import ticker
import numpy as np

from tasks.experiments import grids
from tasks.experiments import paper_tables
from tasks.reporting import canvas
from tasks.reporting import over_p
from tasks.reporting import results
from tasks.reporting import styles

# Minimum number of steps of an ablation.
_MIN_STEPS = 3
_PERCENT_BELOW = 25
_MAX_CURVES = 6
# Settings that follow from, or set, the epsilon of a run.
_OF_EPSILON = (*results.NOT_COMPARED, 'epsilon', 'noise_multiplier', 'delta')


def draw_task(groups: Sequence[results.Group]) -> dict[str, mpl_figure.Figure]:
  """Returns the figures for which the runs of one task have points, by name.

  Args:
    groups: One or more groups of runs of one task.

  Returns:
    The ablation, if three steps of the grid ablation/TASK were run; Figure 2; Figure 3, if a method
    has complete runs at three p with the other flags of the grid paper/TASK; accuracy over epsilon,
    if complete runs differ in epsilon alone.
  """
  task = groups[0].config['task']
  complete = [group for group in groups if group.complete]
  figures = {
      'ablation': _ablation(task, complete),
      'rounds': _over_rounds(task, groups),
      'ratio': over_p.draw(task, complete),
      'epsilon': _over_epsilon(task, complete),
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
  if not rows or len(paragraphs[0]) < _MIN_STEPS or not (shared := set.intersection(*seeds)):
    return None
  figure = canvas.new_figure(task, 'ablation, one component more per row')
  axes, ticks, used = figure.subplots(), [], []
  for paragraph in paragraphs:
    part = [
        results.Group(tuple(run for run in group.runs if run.config['seed'] in shared))
        for group in paragraph.values()
    ]
    means, stds = canvas.means_and_stds(part, 'final')
    heights = -np.arange(len(used), len(used) + len(part))
    bars = stds / len(shared) ** 0.5
    axes.errorbar(means, heights, xerr=bars, fmt='o' if used else 'o-', capsize=3)
    ticks += [f'{title}: {mean:.1f} %' for title, mean in zip(paragraph, means)]
    used += part
  axes.set_yticks(-np.arange(len(ticks)), ticks)
  axes.set_xlabel('final accuracy (%)')
  return canvas.finish(figure, used, spread='Bars show one standard error')


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
        and any(row.is_of(task, algorithm, group.p, sigma) for row in paper_tables.summaries())
    )
    return is_of_paper, sigma is not None, group.mean('final')

  ranked = sorted(groups, key=rank)
  best = [*{group.label: group for group in ranked}.values()]
  if len(best) > _MAX_CURVES:
    best = [members[-1] for members in styles.by_method(ranked).values()]
  styled = [(style, group) for style, members in styles.by_method(best).items() for group in members]
  drawn = [group for _, group in styled]
  if not any(group.rounds_done for group in drawn):
    return None
  is_one_level = len({group.noise_multiplier for group in drawn} - {None}) <= 1
  figure = canvas.new_figure(task, 'accuracy over rounds and uplink')
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
  # Without a warm start the first rounds are steep, and differ least between methods.
  lowest = min(group.mean('final') for group in drawn) - _PERCENT_BELOW
  if target and any(group.can_measure_uplink_to(target.accuracy) for group in drawn):
    lowest = min(lowest, target.accuracy - _PERCENT_BELOW)
    for axes in panels:
      axes.axhline(target.accuracy, color='0.4', linewidth=0.7, zorder=0)
    by_round.annotate(
        f'the paper\'s target: {target.accuracy:g} %', (1, target.accuracy), (0, -3),
        by_round.get_yaxis_transform(), 'offset points', ha='right', va='top',
        fontsize='small', color='0.4',
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
  canvas.label_ends(by_round, ends)
  note = ''
  if len(drawn) < len(groups):
    note = f'Of {len(groups)} configurations, the paper\'s or the best of each method is drawn. '
  return canvas.finish(figure, drawn, note, spread='Bands show one standard deviation')


def _over_epsilon(task: str, groups: Sequence[results.Group]) -> Optional[mpl_figure.Figure]:
  """Returns final accuracy over the epsilon of runs that have their other flags in common."""
  series: dict[str, list[results.Group]] = {}
  for group in groups:
    if group.rounds_done and 0 < group.mean('epsilon') < np.inf:
      flags = {name: v for name, v in group.config['flags'].items() if name not in _OF_EPSILON}
      series.setdefault(f'{group.short_label} {sorted(flags.items())}', []).append(group)
  series = {key: members for key, members in series.items() if len(members) > 1}
  if not series:
    return None
  figure = canvas.new_figure(task, 'accuracy over epsilon')
  axes, ends = figure.subplots(), []
  drawn = [group for members in series.values() for group in members]
  style_by_group = {
      id(group): style for style, members in styles.by_method(drawn).items() for group in members
  }
  for members in series.values():
    members.sort(key=lambda group: group.mean('epsilon'))
    style = style_by_group[id(members[0])]
    means, stds = canvas.means_and_stds(members, 'final')
    # No bar for one seed.
    stds[stds == 0] = np.nan
    epsilons = [group.mean('epsilon') for group in members]
    axes.errorbar(epsilons, means, yerr=stds, capsize=3, **style.line())
    ends.append((means[-1], f'{members[-1].short_label}: {means[-1]:.1f} %', style.color))
  axes.set(xlabel='epsilon of the run', ylabel='final accuracy (%)')
  canvas.label_ends(axes, ends)
  return canvas.finish(figure, drawn)
