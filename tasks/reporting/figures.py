"""The paper's two figures from runs, over rounds and over p, and the figure of an ablation."""

from collections.abc import Iterable, Sequence
import itertools
from typing import Optional

import numpy as np

from tasks import datasets
from tasks import systems
from tasks.cli import grids
from tasks.cli import options
from tasks.cli import paper_tables
from tasks.reporting import drawing
from tasks.reporting import results

# The figure over rounds selects from more curves.
_MAX_CURVES = 6
# The fewest points of an ablation and of a curve over p.
_MIN_POINTS = 3
_PERCENT_BELOW = 25
_SPARSIFIERS = {'randk': 'rand-k', 'topk': 'top-k'}
# Flags in which the points of a curve over p may differ.
_NOT_ALONG_A_CURVE = (*results.NOT_COMPARED, 'algorithm')
# Flags without effect at p = 1.
_MASK_FLAGS = tuple(
    name for system in systems.SYSTEMS.values() if system.options
    for name in options.options_of(system.options)
) + ('mask_rounds', 'public_examples')
# Flags that every label already shows, and the seed.
_IN_LABELS = ('seed', 'p', 'k', 'noise_multiplier', 'epsilon')


def of_task(groups: Sequence[results.Group]) -> list[drawing.Figure]:
  """Returns the figures for which the runs of one task have points.

  Args:
    groups: One or more groups of runs of one task.

  Returns:
    The ablation, if the rows of the grid ablation/TASK were run; Figure 2; Figure 3, if a system
    has complete runs at three p.
  """
  task = groups[0].config['task']
  complete = [group.complete for group in groups if group.complete]
  figures = [_ablation(task, complete), _over_rounds(task, groups), _over_p(task, complete)]
  return [figure for figure in figures if figure is not None]


def label(group: results.Group, with_p: bool = True, with_sigma: bool = True) -> str:
  """Describes a group in a few words."""
  text = systems.SYSTEMS[group.config['algorithm']].title
  if with_p and group.p < 1:
    text += f', p = {group.p:.3g}'
  if with_sigma and group.noise_multiplier is not None:
    text += f', sigma = {group.noise_multiplier:.3g}'
  return text


def _ablation(task: str, groups: Sequence[results.Group]) -> Optional[drawing.Figure]:
  """Returns final accuracy in the grid ablation/TASK, over the seeds that all of its rows share.

  The first paragraph lists steps, joined by a line; the others list baselines.
  """
  name = f'ablation/{task}'
  if name not in grids.names():
    return None
  first, *others = grids.read(name)
  steps, baselines = (
      [(cell.title, group) for cell in cells for group in groups if _is_of(group, cell)]
      for cells in (first, itertools.chain(*others))
  )
  rows = [*steps, *baselines]
  seeds = [{run.config['seed'] for run in group.runs} for _, group in rows]
  if len(steps) < _MIN_POINTS or not (shared := set.intersection(*seeds)):
    return None
  used = [
      results.Group(tuple(run for run in group.runs if run.config['seed'] in shared))
      for _, group in rows
  ]
  means, stds = _means_and_stds(used, 'final')
  heights = -np.arange(len(rows), dtype=float)
  curves = [
      drawing.Curve('', means[part], heights[part], None, color, style, stds[part])
      for part, style, color in (
          (slice(len(steps)), 'points', 0), (slice(len(steps), None), 'marks', 1)
      )
      if len(heights[part])
  ]
  ticks = [f'{title}: {mean:.1f} %' for (title, _), mean in zip(rows, means)]
  panel = drawing.Panel('', 'final accuracy (%)', '', curves, ticks=ticks)
  return _figure(task, 'ablation', 'ablation, one component more per row', [panel], used)


def _is_of(group: results.Group, cell: grids.Cell) -> bool:
  """Whether runs that the report does not cut have a cell's flags, whatever their seed."""
  flags = group.config['flags']
  return group.runs[0].rounds == cell.identity['rounds'] and all(
      flags.get(name) == value for name, value in cell.identity.items() if name != 'seed'
  )


def _over_rounds(task: str, groups: Sequence[results.Group]) -> drawing.Figure:
  """Returns Figure 2: accuracy over rounds and over the uplink."""
  drawn, notes = groups, []
  if len(groups) > _MAX_CURVES:
    ranked = sorted(groups, key=lambda group: group.mean('final'))
    best = {group.config['algorithm']: group for group in ranked}
    # A single curve would compare nothing.
    drawn = list(best.values()) if len(best) > 1 else ranked[-_MAX_CURVES:]
    which = 'of each system' if len(best) > 1 else f'{len(drawn)}'
    notes = [f'the most accurate {which} among {len(groups)} settings']
  order = list(systems.SYSTEMS)
  drawn = sorted(drawn, key=lambda group: order.index(group.config['algorithm']))
  last_round = max(group.runs[0].columns['round'][-1] for group in drawn)
  by_round, by_uplink = [], []
  for color, (group, name) in enumerate(zip(drawn, _labels(drawn))):
    rounds, accuracy, spread = group.curve('test_accuracy')
    accuracy, spread = 100 * accuracy, 100 * spread
    if not group.config['rounds']:  # Without rounds it is a level.
      name += f': {accuracy[-1]:.1f} %'
      ends, level = np.array([0, last_round]), accuracy[[-1, -1]]
      by_round.append(drawing.Curve(name, ends, level, None, color, 'reference'))
      continue
    name += f': best {group.mean("best"):.1f} %'
    by_round.append(drawing.Curve(name, rounds, accuracy, spread, color))
    _, uplink, _ = group.curve('uplink_megabytes')
    sent = uplink > 0  # A logarithmic scale has no zero, the uplink before the first round.
    by_uplink.append(drawing.Curve('', uplink[sent], accuracy[sent], spread[sent], color))
  # The first rounds are steep, and differ least between systems, unless they follow a warm start.
  lowest = min(curve.y.min() for curve in by_round)
  bottom = max(0.0, min(curve.y[-1] for curve in by_round) - _PERCENT_BELOW, lowest - 1)
  panels = [drawing.Panel('', 'round', 'accuracy (%)', by_round, bottom=bottom)]
  if by_uplink:
    panels.append(
        drawing.Panel('', 'uplink per client (MB)', 'accuracy (%)', by_uplink, True, bottom)
    )
  return _figure(task, 'rounds', 'accuracy over rounds and uplink', panels, drawn, notes)


def _over_p(task: str, groups: Sequence[results.Group]) -> Optional[drawing.Figure]:
  """Returns Figure 3: loss and accuracy over p, with noise and without."""
  panels, sigma = [], paper_tables.settings_of(task).noise_multiplier
  for kind, title in _SPARSIFIERS.items():
    losses, accuracies = [], []
    for color, (algorithms, noise) in enumerate([
        ((f'fedsmp_{kind}', 'dp_fedavg'), sigma), ((f'fedavg_{kind}', 'fedavg'), None),
    ]):
      masked, dense = (systems.SYSTEMS[algorithm].title for algorithm in algorithms)
      curves = _curves_over_p([
          group for group in groups if group.config['algorithm'] in algorithms
          and paper_tables.is_same_sigma(group.noise_multiplier, noise)
      ])
      for i, (text, curve) in enumerate(curves.items()):
        name = f'{masked}; at p = 1 {dense}{text}'
        losses.append(_points(name, curve, 'loss', color + 2 * i))
        accuracies.append(_points(name, curve, 'best', color + 2 * i))
      if curves:
        accuracies += _paper_curve(task, algorithms, noise, color)
    if losses:
      panels += [
          drawing.Panel(title, 'compression ratio p', 'last test loss', losses, True),
          drawing.Panel(title, 'compression ratio p', 'best accuracy (%)', accuracies, True),
      ]
  return _figure(task, 'ratio', 'loss and accuracy over p', panels, groups) if panels else None


def _curves_over_p(groups: Sequence[results.Group]) -> dict[str, list[results.Group]]:
  """Returns groups at three p or more that differ in no other flag, by the flags that differ.

  A group at p = 1, where masks have no effect, ends each curve from which it differs in those only.
  """
  curves = []
  for group in sorted(groups, key=lambda group: group.p):
    ignored = (*_NOT_ALONG_A_CURVE, *(_MASK_FLAGS if group.p == 1 else ()))
    matching = [curve for curve in curves if not _differing((curve[0], group), ignored)]
    for curve in matching:
      curve.append(group)
    if not matching:
      curves.append([group])
  curves = [curve for curve in curves if len({group.p for group in curve}) >= _MIN_POINTS]
  names = _differing([curve[0] for curve in curves], _NOT_ALONG_A_CURVE)
  return {_flags_text(curve[0], names): curve for curve in curves}


def _points(name: str, groups: Sequence[results.Group], value: str, color: int) -> drawing.Curve:
  """Returns a curve over p with the mean of all runs at each."""
  rounds = sorted({run.rounds for group in groups for run in group.runs})
  if rounds != [paper_tables.settings_of(groups[0].config['task']).rounds]:
    name += f'; {" or ".join(f"{t:,}" for t in rounds)} round{"s" * (rounds != [1])}'
  ratios = sorted({group.p for group in groups})
  means, stds = _means_and_stds([
      results.Group(tuple(run for group in groups if group.p == p for run in group.runs))
      for p in ratios
  ], value)
  return drawing.Curve(name, np.array(ratios), means, stds, color, 'points')


def _means_and_stds(
    groups: Sequence[results.Group], value: str
) -> tuple[np.ndarray, np.ndarray]:
  means, stds = zip(*(group.mean_and_std(value) for group in groups))
  return np.array(means), np.array([std or 0.0 for std in stds])


def _paper_curve(
    task: str, algorithms: Sequence[str], sigma: Optional[float], color: int
) -> list[drawing.Curve]:
  """Returns the paper's accuracies over p, if there are two or more."""
  points = {}
  for row in paper_tables.rows():
    if row.task == task and row.algorithm in algorithms and paper_tables.is_same_sigma(
        row.noise_multiplier, sigma
    ):
      points.setdefault(row.p, row.accuracy)  # Tables 1 to 3 first: later ones have slips.
  if len(points) < 2:
    return []
  x, y = np.array(sorted(points.items())).T
  name = f'the paper, {paper_tables.settings_of(task).rounds:,} rounds'
  return [drawing.Curve(name, x, y, None, color, 'reference')]


def _figure(
    task: str, name: str, title: str, panels: Sequence[drawing.Panel],
    groups: Sequence[results.Group], notes: Sequence[str] = (),
) -> drawing.Figure:
  """Returns a figure of a task, with epsilon, sigma and number of seeds in its note."""
  notes = list(notes)
  if private := [group for group in groups if group.noise_multiplier]:
    epsilons = [x for group in private if not np.isnan(x := group.mean('epsilon'))]
    seeded = any(group.config['seed'] is not None for group in private)
    status = 'valid with fresh noise' if seeded else 'valid'
    notes.append(f'epsilon ({status}): {_range(epsilons) if epsilons else "not known"}')
    notes.append(f'sigma: {_range([group.noise_multiplier for group in private])}')
  seeds = [len(group.runs) for group in groups]
  notes.append(f'seeds per setting: {_range(seeds)}')
  if max(seeds) > 1:
    notes.append('bands and bars are one standard deviation')
  note = '; '.join(notes)
  return drawing.Figure(
      f'{task}_{name}', f'{datasets.TASKS[task].title}: {title}', panels,
      f'{note[:1].upper()}{note[1:]}.',
  )


def _range(values: Sequence[float]) -> str:
  low, high = f'{min(values):.3g}', f'{max(values):.3g}'
  return low if low == high else f'{low} to {high}'


def _labels(groups: Sequence[results.Group]) -> list[str]:
  """Returns labels with the flags in which groups of one system differ."""
  ratios = {f'{group.p:.3g}' for group in groups if group.p < 1}
  sigmas = {f'{s:.3g}' for group in groups if (s := group.noise_multiplier) is not None}
  labels = []
  for group in groups:
    system = [g for g in groups if g.config['algorithm'] == group.config['algorithm']]
    flags_text = _flags_text(group, _differing(system, _IN_LABELS))
    labels.append(label(group, len(ratios) > 1, len(sigmas) > 1) + flags_text)
  return labels


def _differing(groups: Sequence[results.Group], ignored: Sequence[str]) -> set[str]:
  """Returns the flags in which groups differ."""
  return {
      name for group in groups for name in group.config['flags']
      if name not in ignored
      and len({str(other.config['flags'].get(name)) for other in groups}) > 1
  }


def _flags_text(group: results.Group, names: Iterable[str]) -> str:
  """Returns ', FLAG = VALUE' for each of these flags that is set."""
  flags = group.config['flags']
  return ''.join(
      f', {name} = {results.text(flags[name])}' for name in sorted(names)
      if flags.get(name) is not None
  )
