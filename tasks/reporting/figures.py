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

# With more curves than this, the figure over rounds leaves some out, and counts them.
_MOST_CURVES = 6
# An ablation, and a curve over p, have at least so many points.
_FEWEST_POINTS = 3
_PERCENT_BELOW = 25
_SPARSIFIERS = {'randk': 'rand-k', 'topk': 'top-k'}
# What may differ between the points of a curve over p, and where p = 1 has nothing to choose.
_NOT_ALONG_A_CURVE = (*results.NOT_COMPARED, 'algorithm')
_MASK_FLAGS = tuple(
    name for system in systems.SYSTEMS.values() if system.options
    for name in options.options_of(system.options)
) + ('mask_rounds', 'public_examples')
# What a label has anyway, and seeds.
_IN_LABELS = ('seed', 'p', 'k', 'noise_multiplier', 'epsilon')


def of_task(groups: Sequence[results.Group]) -> list[drawing.Figure]:
  """Returns all figures that the runs of one task have points for.

  Args:
    groups: One or more groups of runs of one task.

  Returns:
    The ablation, if the steps of the grid ablation/TASK were run; Figure 2; Figure 3, if a system
    has complete runs at three p.
  """
  task = groups[0].config['task']
  complete = [group.complete for group in groups if group.complete]
  found = [_ablation(task, complete), _over_rounds(task, groups), _over_p(task, complete)]
  return [figure for figure in found if figure is not None]


def label(group: results.Group, with_p: bool = True, with_sigma: bool = True) -> str:
  """Describes a group in a few words."""
  text = systems.SYSTEMS[group.config['algorithm']].title
  if with_p and group.p < 1:
    text += f', p = {group.p:.3g}'
  if with_sigma and group.noise_multiplier is not None:
    text += f', sigma = {group.noise_multiplier:.3g}'
  return text


def _ablation(task: str, groups: Sequence[results.Group]) -> Optional[drawing.Figure]:
  """Final accuracy of the runs that the grid ablation/TASK lists, over the seeds that all of them have.

  The first paragraph's are steps, joined by a line; the others' are baselines beside them.
  """
  name = f'ablation/{task}'
  if name not in grids.names():
    return None
  parts = [
      [(cell.title, group) for cell in paragraph for group in groups if _is_of(group, cell)]
      for paragraph in grids.read(name)
  ]
  cells = list(itertools.chain(*parts))
  num = len(parts[0])
  seeds = [{run.config['seed'] for run in group.runs} for _, group in cells]
  if num < _FEWEST_POINTS or not (shared := set.intersection(*seeds)):
    return None
  used = [
      results.Group(tuple(run for run in group.runs if run.config['seed'] in shared))
      for _, group in cells
  ]
  finals = [group.mean_and_std('final') for group in used]
  accuracies = np.array([mean for mean, _ in finals])
  spreads = np.array([std or 0.0 for _, std in finals])
  heights = -np.arange(len(cells), dtype=float)
  curves = [
      drawing.Curve('', accuracies[part], heights[part], style=style, x_spread=spreads[part], color=color)
      for part, style, color in ((slice(num), 'points', 0), (slice(num, None), 'marks', 1))
      if len(heights[part])
  ]
  ticks = [f'{title}: {mean:.1f} %' for (title, _), mean in zip(cells, accuracies)]
  panel = drawing.Panel('', 'final accuracy (%)', '', curves, ticks=ticks)
  return _figure(task, 'ladder', 'ablation, one component more per row', [panel], used)


def _is_of(group: results.Group, cell: grids.Cell) -> bool:
  """Whether a group's runs have a cell's flags, whatever their seed."""
  expected, flags = cell.identity, group.config['flags']
  # Not a run that the report cuts.
  whole = all(run.rounds == expected['rounds'] for run in group.runs)
  return whole and all(flags.get(name) == value for name, value in expected.items() if name != 'seed')


def _over_rounds(task: str, groups: Sequence[results.Group]) -> drawing.Figure:
  """Figure 2: accuracy over rounds and over the uplink."""
  drawn, notes = groups, []
  if len(groups) > _MOST_CURVES:
    ranked = sorted(groups, key=lambda group: group.mean_and_std('final')[0])
    best = {group.config['algorithm']: group for group in ranked}
    # One curve compares nothing.
    drawn = list(best.values()) if len(best) > 1 else ranked[-_MOST_CURVES:]
    which = 'of each system' if len(best) > 1 else f'{len(drawn)}'
    notes = [f'the most accurate {which} among {len(groups)} settings']
  drawn = sorted(drawn, key=lambda group: _order(group))
  last_round = max(group.runs[0].columns['round'][-1] for group in drawn)
  by_round, by_uplink, lasts = [], [], []
  for group, name, color in zip(drawn, _labels(drawn), _colors(drawn)):
    rounds, accuracy, spread = group.curve('test_accuracy')
    _, uplink, _ = group.curve('uplink_megabytes')
    lasts.append(100 * accuracy[-1])
    if not group.config['rounds']:  # Without rounds it is a level.
      ends, level = np.array([0, last_round]), np.full(2, lasts[-1])
      name += f': {level[0]:.1f} %'
      by_round.append(drawing.Curve(name, ends, level, None, color, 'reference'))
      continue
    # As in the tables: the mean of each run's best.
    name += f': best {group.mean_and_std("best")[0]:.1f} %'
    by_round.append(drawing.Curve(name, rounds, 100 * accuracy, 100 * spread, color))
    # Before the first round nothing is sent, and a logarithm has no zero.
    sent = uplink > 0
    by_uplink.append(
        drawing.Curve('', uplink[sent], 100 * accuracy[sent], 100 * spread[sent], color)
    )
  # The first rounds are steep, and tell systems apart least. After a warm start they are not.
  lowest = min(float(curve.y.min()) for curve in by_round)
  bottom = max(0.0, min(lasts) - _PERCENT_BELOW, lowest - 1)
  panels = [drawing.Panel('', 'round', 'accuracy (%)', by_round, bottom=bottom)]
  if by_uplink:
    panels.append(
        drawing.Panel('', 'uplink per client (MB)', 'accuracy (%)', by_uplink, True, bottom)
    )
  return _figure(task, 'rounds', 'accuracy over rounds and uplink', panels, drawn, notes)


def _over_p(task: str, groups: Sequence[results.Group]) -> Optional[drawing.Figure]:
  """Figure 3: loss and accuracy over p, with noise and without."""
  panels = []
  for kind, title in _SPARSIFIERS.items():
    losses, accuracies = [], []
    sigma = paper_tables.settings_of(task).noise_multiplier
    for color, (algorithm, at_one, noise) in enumerate(
        [(f'fedsmp_{kind}', 'dp_fedavg', sigma), (f'fedavg_{kind}', 'fedavg', None)]
    ):
      some = [
          group for group in groups
          if group.config['algorithm'] in (algorithm, at_one)
          and paper_tables.is_same_sigma(group.noise_multiplier, noise)
      ]
      found = _over_several_p(some)
      for i, (text, curve) in enumerate(found.items()):
        name = f'{systems.SYSTEMS[algorithm].title}; at p = 1 {systems.SYSTEMS[at_one].title}{text}'
        losses.append(_points(name, curve, 'final_loss', color + 2 * i))
        accuracies.append(_points(name, curve, 'best', color + 2 * i))
      if found:
        accuracies += _papers(task, (algorithm, at_one), noise, color)
    if losses:
      panels += [
          drawing.Panel(title, 'compression ratio p', 'last test loss', losses, True),
          drawing.Panel(title, 'compression ratio p', 'best accuracy (%)', accuracies, True),
      ]
  if not panels:
    return None
  return _figure(task, 'ratio', 'loss and accuracy over p', panels, groups)


def _over_several_p(groups: Sequence[results.Group]) -> dict[str, list[results.Group]]:
  """Groups at three p or more that are alike in all other flags, by what distinguishes them.

  Those at p = 1 end each curve that they are like but in how coordinates are chosen.
  """
  curves = []
  for group in sorted(groups, key=lambda group: group.p):
    matching = [
        curve for curve in curves
        if not _differing(
            (curve[0], group), (*_NOT_ALONG_A_CURVE, *(_MASK_FLAGS if group.p == 1 else ()))
        )
    ]
    for curve in matching:
      curve.append(group)
    if not matching:
      curves.append([group])
  found = [curve for curve in curves if len({g.p for g in curve}) >= _FEWEST_POINTS]
  firsts = [curve[0] for curve in found]
  names = _differing(firsts, _NOT_ALONG_A_CURVE)
  return {_values(first, names): curve for first, curve in zip(firsts, found)}


def _points(
    name: str, groups: Sequence[results.Group], attribute: str, color: int
) -> drawing.Curve:
  """A curve over p with a point for each, its groups' mean."""
  rounds = sorted({run.rounds for group in groups for run in group.runs})
  if rounds != [paper_tables.settings_of(groups[0].config['task']).rounds]:
    name += f'; {" or ".join(f"{t:,}" for t in rounds)} round{"s" * (rounds != [1])}'
  ratios = sorted({group.p for group in groups})
  at_each = [
      results.Group(tuple(run for group in groups if group.p == p for run in group.runs))
      for p in ratios
  ]
  means, stds = zip(*(group.mean_and_std(attribute) for group in at_each))
  spreads = np.array([std or 0.0 for std in stds])
  return drawing.Curve(name, np.array(ratios), np.array(means), spreads, color, 'points')


def _papers(
    task: str, algorithms: Sequence[str], sigma: Optional[float], color: int
) -> list[drawing.Curve]:
  """The paper's accuracies over p, if it has some."""
  points = {}
  for row in paper_tables.rows():
    if row.task == task and row.algorithm in algorithms and paper_tables.is_same_sigma(
        row.noise_multiplier, sigma
    ):
      points.setdefault(row.p, row.accuracy)  # Tables 1 to 3 first: later ones have slips.
  if len(points) < 2:
    return []
  x = np.array(sorted(points))
  y = np.array([points[p] for p in x])
  name = f'the paper, {paper_tables.settings_of(task).rounds:,} rounds'
  return [drawing.Curve(name, x, y, None, color, 'reference')]


def _figure(
    task: str, name: str, title: str, panels: Sequence[drawing.Panel],
    groups: Sequence[results.Group], notes: Sequence[str] = (),
) -> drawing.Figure:
  """A figure of a task, with what its runs share below: epsilon, sigma and seeds."""
  notes = list(notes)
  private = [group for group in groups if group.noise_multiplier]
  if private:
    known = [x for group in private if (x := group.last('epsilon')) is not None]
    how = 'valid with fresh noise' if any(g.config['seed'] is not None for g in private) else 'valid'
    notes.append(f'epsilon ({how}): {_range(known) if known else "not known"}')
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
  """Labels that tell the groups apart: with the flags that differ within a system."""
  several_p = len({f'{group.p:.3g}' for group in groups if group.p < 1}) > 1
  sigmas = {group.noise_multiplier for group in groups if group.noise_multiplier is not None}
  several_sigmas = len({f'{sigma:.3g}' for sigma in sigmas}) > 1
  found = []
  for group in groups:
    system = [g for g in groups if g.config['algorithm'] == group.config['algorithm']]
    words = _values(group, _differing(system, _IN_LABELS))
    found.append(label(group, several_p, several_sigmas) + words)
  return found


def _differing(groups: Sequence[results.Group], left_out: Sequence[str]) -> set[str]:
  """The flags in which groups are not all alike."""
  return {
      name for group in groups for name in group.config['flags']
      if name not in left_out
      and len({str(other.config['flags'].get(name)) for other in groups}) > 1
  }


def _values(group: results.Group, names: Iterable[str]) -> str:
  """', FLAG = VALUE' for each of these flags that is set."""
  flags = group.config['flags']
  return ''.join(
      f', {name} = {results.text(flags[name])}' for name in sorted(names)
      if flags.get(name) is not None
  )


def _order(group: results.Group) -> int:
  """The place of a group's system in the order of colors and legends."""
  return list(systems.SYSTEMS).index(group.config['algorithm'])


def _colors(groups: Sequence[results.Group]) -> list[int]:
  """A system's own color for its first group, and for others what is left."""
  own = [_order(group) for group in groups]
  free = (color for color in itertools.count() if color not in own)
  return [color if color not in own[:i] else next(free) for i, color in enumerate(own)]
