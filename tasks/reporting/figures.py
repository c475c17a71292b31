"""The paper's figures from runs: accuracy over rounds and uplink, and all of them over p."""

from collections.abc import Iterable, Sequence
import itertools
from typing import Optional

import numpy as np

from tasks import datasets
from tasks.config import grids
from tasks.config import options
from tasks.config import paper_tables
from tasks.config import settings as settings_lib
from tasks.reporting import drawing
from tasks.reporting import results

# With more curves than this, a figure leaves some out, and says so.
_MOST_CURVES = 6
# A curve over p has at least so many.
_FEWEST_RATIOS = 3
_PERCENT_BELOW = 25
_ACCURACY = 'accuracy (%)'
_BEST = 'best accuracy (%)'
_SPARSIFIERS = {'randk': 'rand-k', 'topk': 'top-k'}
# What may differ between the points of a curve over p, and where p = 1 has nothing to choose.
_NOT_ALONG_A_CURVE = (*results.NOT_COMPARED, 'algorithm')
_OF_A_CHOICE = tuple(
    name for name, option in options.options_of(settings_lib.RunSettings).items()
    if option.group == settings_lib.PUBLIC_DATA and name != 'warm_start'
) + ('mask_rounds',)
# What a label has anyway, and seeds.
_IN_LABELS = ('seed', 'p', 'k', 'noise_multiplier', 'epsilon')
# A color for each system, so that figures agree; further curves of one take the next free.
_ORDER = (
    'fedsmp_topk', 'fedsmp_randk', 'dp_fedavg', 'fedavg', 'fedavg_topk', 'fedavg_randk',
    'fedsmp_released', settings_lib.PUBLIC_ONLY,
)
_TITLES = {
    'fedsmp_topk': 'Fed-SMP top-k', 'fedsmp_randk': 'Fed-SMP rand-k',
    'fedsmp_released': 'Fed-SMP past releases', 'dp_fedavg': 'DP-FedAvg', 'fedavg': 'FedAvg',
    'fedavg_topk': 'FedAvg top-k', 'fedavg_randk': 'FedAvg rand-k',
    settings_lib.PUBLIC_ONLY: 'public data alone',
}
# What a person calls a flag with a value; others are 'flag = value'.
_WORDS = {
    'warm_start': lambda value: (
        'warm start' if value == settings_lib.PUBLIC else "from another run's weights"
    ),
    'clip': lambda value: f'C = {value:g}',
    'clients_per_round': lambda value: f'r = {value}',
    'sampling': lambda value: {'poisson': 'Poisson sampling', 'fixed': 'fixed cohorts'}[value],
    'server_learning_rate': lambda value: f'server rate {value:g}',
    'server_schedule': lambda value: 'falling server rate',
    'clip_schedule': lambda value: 'falling C',
    'mask_rounds': lambda value: 'new masks' if value == 1 else f'masks held {value} rounds',
    'public_clients': lambda value: f'{value} pseudo-clients' if value else 'one public training',
    'public_update': lambda value: 'masks made ahead' if value == 'ahead' else 'masks in time',
    'released_weight': lambda value: f'past releases {value:g}',
    'initializer': lambda value: f"{value}'s initial weights",
}


def of_task(groups: Sequence[results.Group]) -> list[drawing.Figure]:
  """All figures that the runs of one task have points for.

  Args:
    groups: One or more groups of runs of one task.

  Returns:
    The ladder, if the steps of the task's were run; Figure 2; Figure 3 and the trade-off between
    privacy and accuracy, if a system has complete runs at three p; and private systems over p, if
    two have.
  """
  task = groups[0].config['task']
  complete = [group.complete for group in groups if group.complete]
  found = [
      _ladder(task, complete),
      _over_rounds(task, groups),
      _over_p(task, complete),
      _trade_off(task, complete),
      _systems(task, complete),
  ]
  return [figure for figure in found if figure is not None]


def label(group: results.Group) -> str:
  """A few words on what a group is."""
  text = _TITLES[group.config['algorithm']]
  if group.p < 1:
    text += f', p = {group.p:.3g}'
  if group.noise_multiplier is not None:
    text += f', sigma = {group.noise_multiplier:.3g}'
  return text


def _ladder(task: str, groups: Sequence[results.Group]) -> Optional[drawing.Figure]:
  """Final accuracy, a step after the other, of the runs that the grid ladder/TASK lists."""
  name = f'ladder/{task}'
  if name not in grids.names():
    return None
  titles, accuracies, spreads = [], [], []
  for paragraph in grids.read(name):
    for cell in paragraph:
      alike = [group for group in groups if _is_of(group, cell)]
      if alike:
        mean, std = alike[0].mean_and_std('final')
        titles.append(f'{cell.title}: {mean:.1f} %')
        accuracies.append(mean)
        spreads.append(std or 0.0)
  if len(titles) < _FEWEST_RATIOS:
    return None
  curve = drawing.Curve(
      '', np.array(accuracies), -np.arange(len(titles), dtype=float), None, 0, 'points'
  )
  panel = drawing.Panel('', 'final accuracy (%)', '', [curve], ticks=titles)
  return _figure(task, 'ladder', 'from FedAvg to privacy, a step at a time', [panel])


def _is_of(group: results.Group, cell: grids.Cell) -> bool:
  """Whether a group's runs have a cell's flags, whatever their seed."""
  theirs, ours = settings_lib.completed(cell.identity), group.config['flags']
  # Not a run that the report cuts.
  whole = all(run.rounds == theirs['rounds'] for run in group.runs)
  return whole and all(ours.get(name) == value for name, value in theirs.items() if name != 'seed')


def _over_rounds(task: str, groups: Sequence[results.Group]) -> drawing.Figure:
  """Figure 2: accuracy over rounds and over the uplink."""
  title = 'accuracy over rounds and uplink'
  num = len(groups)
  if num > _MOST_CURVES:
    drawn = [group for group in groups if _is_drawn_by_the_paper(group)]
    which = 'the paper\'s own'
    if not 0 < len(drawn) <= _MOST_CURVES:
      drawn = sorted(groups, key=lambda group: group.mean_and_std('final')[0])[-_MOST_CURVES:]
      which = 'the most accurate'
    groups = drawn
    title += f'; {which} {len(groups)} of {num} settings'
  groups = sorted(groups, key=lambda group: _ORDER.index(group.config['algorithm']))
  last_round = max(group.runs[0].columns['round'][-1] for group in groups)
  by_round, by_uplink, lasts = [], [], []
  for group, name, color in zip(groups, _labels(groups), _colors(groups)):
    rounds, accuracy, spread = group.curve('test_accuracy')
    _, uplink, _ = group.curve('uplink_megabytes')
    lasts.append(100 * accuracy[-1])
    if not group.config['rounds']:  # Without rounds it is a level.
      level = np.full(2, 100 * accuracy[-1])
      name += f': {level[0]:.1f} %'
      by_round.append(
          drawing.Curve(name, np.array([0, last_round]), level, None, color, 'reference')
      )
      continue
    # As in the tables: the mean of each run's best.
    name += f': best {group.mean_and_std("best")[0]:.1f} %'
    by_round.append(drawing.Curve(name, rounds, 100 * accuracy, 100 * spread, color))
    # Before the first round nothing is sent, and a logarithm has no zero.
    sent = uplink > 0
    by_uplink.append(
        drawing.Curve(
            '', uplink[sent], 100 * accuracy[sent], 100 * spread[sent], color
        )
    )
  # The first rounds are steep, and tell systems apart least.
  bottom = max(0.0, min(lasts) - _PERCENT_BELOW)
  return drawing.Figure(
      f'{task}_rounds',
      f'{datasets.TASKS[task].title}: {title}',
      [
          drawing.Panel('', 'round', _ACCURACY, by_round, bottom=bottom),
          drawing.Panel(
              '', 'uplink a client (MB, average)', _ACCURACY, by_uplink, True, bottom
          ),
      ],
  )


def _over_p(task: str, groups: Sequence[results.Group]) -> Optional[drawing.Figure]:
  """Figure 3: loss and accuracy over p, with noise and without."""
  panels = []
  for kind, title in _SPARSIFIERS.items():
    losses, accuracies = [], []
    sigma = datasets.TASKS[task].settings.noise_multiplier
    for color, (algorithm, at_one, noise) in enumerate(
        [(f'fedsmp_{kind}', 'dp_fedavg', sigma), (f'fedavg_{kind}', 'fedavg', None)]
    ):
      some = [
          group for group in groups
          if group.config['algorithm'] in (algorithm, at_one)
          and paper_tables.is_same_sigma(group.noise_multiplier, noise)
      ]
      found = _over_several_p(some)
      for i, (text, alike) in enumerate(found.items()):
        name = f'{_TITLES[algorithm]}; at p = 1 {_TITLES[at_one]}{text}'
        losses.append(_points(name, alike, 'final_loss', color + 2 * i))
        accuracies.append(_points(name, alike, 'best', color + 2 * i))
      if found:
        accuracies += _papers(task, (algorithm, at_one), noise, color)
    if losses:
      panels += [
          drawing.Panel(title, 'compression ratio p', 'last test loss', losses, True),
          drawing.Panel(title, 'compression ratio p', _BEST, accuracies, True),
      ]
  return _figure(task, 'ratio', 'over p, with noise and without', panels)


def _trade_off(task: str, groups: Sequence[results.Group]) -> Optional[drawing.Figure]:
  """Tables 4 to 9 as a figure: accuracy over p for each sigma."""
  panels = []
  for kind, title in _SPARSIFIERS.items():
    some = [g for g in groups if g.config['algorithm'] == f'fedsmp_{kind}']
    curves = []
    sigmas = sorted({group.noise_multiplier for group in some})
    for color, sigma in enumerate(sigmas):
      of_sigma = [group for group in some if group.noise_multiplier == sigma]
      found = _over_several_p(of_sigma)
      for i, (text, alike) in enumerate(found.items()):
        epsilon = alike[0].last('epsilon')
        spent = 'not known' if epsilon is None else f'{epsilon:.3g}'
        name = f'sigma = {sigma:.3g}, epsilon = {spent}{text}'
        curves.append(_points(name, alike, 'best', color + i * len(sigmas)))
      if found:
        curves += _papers(task, (f'fedsmp_{kind}',), sigma, color)
    if curves:
      panels.append(drawing.Panel(title, 'compression ratio p', _BEST, curves, True))
  return _figure(task, 'trade_off', 'privacy and accuracy over p', panels)


def _systems(task: str, groups: Sequence[results.Group]) -> Optional[drawing.Figure]:
  """Private systems beside each other: final accuracy over p, a panel for each sigma."""
  panels = []
  for sigma in sorted({g.noise_multiplier for g in groups if g.noise_multiplier is not None}):
    some = [group for group in groups if group.noise_multiplier == sigma]
    found = [
        alike
        for algorithm in _ORDER
        for alike in _over_several_p(
            [g for g in some if g.config['algorithm'] == algorithm]
        ).values()
    ]
    if len({alike[0].config['algorithm'] for alike in found}) < 2:
      continue
    found += [[group] for group in some if group.p == 1]
    firsts = [alike[0] for alike in found]
    names = _differing(firsts, _NOT_ALONG_A_CURVE)
    curves = [
        _points(
            _TITLES[first.config['algorithm']] + _values(first, names), alike, 'final', color
        )
        for first, alike, color in zip(firsts, found, _colors(firsts))
    ]
    title = f'sigma = {sigma:.3g}'
    panels.append(
        drawing.Panel(title, 'compression ratio p', 'final accuracy (%)', curves, True)
    )
  return _figure(task, 'systems', 'private systems over p', panels)


def _figure(
    task: str, name: str, title: str, panels: Sequence[drawing.Panel]
) -> Optional[drawing.Figure]:
  """A figure of a task; None without panels."""
  if not panels:
    return None
  return drawing.Figure(f'{task}_{name}', f'{datasets.TASKS[task].title}: {title}', panels)


def _over_several_p(groups: Sequence[results.Group]) -> dict[str, list[results.Group]]:
  """Groups at three p or more that are alike in all other flags, by what distinguishes them.

  Those at p = 1 end each curve that they are like but in how coordinates are chosen.
  """
  curves = []
  for group in sorted(groups, key=lambda group: group.p):
    alike = [
        curve for curve in curves
        if not _differing(
            (curve[0], group), (*_NOT_ALONG_A_CURVE, *(_OF_A_CHOICE if group.p == 1 else ()))
        )
    ]
    for curve in alike:
      curve.append(group)
    if not alike:
      curves.append([group])
  found = [curve for curve in curves if len({g.p for g in curve}) >= _FEWEST_RATIOS]
  firsts = [alike[0] for alike in found]
  names = _differing(firsts, _NOT_ALONG_A_CURVE)
  return {_values(first, names): alike for first, alike in zip(firsts, found)}


def _points(
    name: str, groups: Sequence[results.Group], attribute: str, color: int
) -> drawing.Curve:
  """A curve over p with a point for each, its groups' mean."""
  rounds = sorted({run.rounds for group in groups for run in group.runs})
  if rounds != [datasets.TASKS[groups[0].config['task']].settings.rounds]:
    name += f'; {" or ".join(f"{t:,}" for t in rounds)} rounds'
  ratios = sorted({group.p for group in groups})
  means, stds = [], []
  for p in ratios:
    runs = [run for group in groups if group.p == p for run in group.runs]
    mean, std = results.Group(tuple(runs)).mean_and_std(attribute)
    means.append(mean)
    stds.append(std or 0.0)
  return drawing.Curve(
      name, np.array(ratios), np.array(means), np.array(stds), color, 'points'
  )


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
  name = f'the paper, {datasets.TASKS[task].settings.rounds:,} rounds'
  return [drawing.Curve(name, x, y, None, color, 'reference')]


def _is_drawn_by_the_paper(group: results.Group) -> bool:
  settings = datasets.TASKS[group.config['task']].settings
  algorithm = group.config['algorithm']
  ratio = {
      'fedsmp_topk': settings.topk_ratio, 'fedsmp_randk': settings.randk_ratio,
      'dp_fedavg': 1.0, 'fedavg': 1.0,
  }.get(algorithm)
  sigma = settings.noise_multiplier if group.noise_multiplier is not None else None
  return (
      ratio is not None
      and paper_tables.is_same_ratio(group.p, ratio)
      and paper_tables.is_same_sigma(group.noise_multiplier, sigma)
  )


def _labels(groups: Sequence[results.Group]) -> list[str]:
  """Labels that tell the groups apart: with the flags that differ, where needed."""
  by_system = {}
  for group in groups:
    by_system.setdefault(group.config['algorithm'], []).append(group)
  names = set().union(*(_differing(alike, _IN_LABELS) for alike in by_system.values()))
  return [label(group) + _values(group, names) for group in groups]


def _differing(groups: Sequence[results.Group], left_out: Sequence[str]) -> set[str]:
  """The flags in which groups are not all alike."""
  return {
      name for group in groups for name in group.config['flags']
      if name not in left_out
      and len({str(other.config['flags'].get(name)) for other in groups}) > 1
  }


def _values(group: results.Group, names: Iterable[str]) -> str:
  """', WORDS' for each of these flags that is set, as `_WORDS` has them."""
  flags = group.config['flags']
  parts = [
      _WORDS[name](flags[name]) if name in _WORDS else f'{name} = {flags[name]}'
      for name in sorted(names) if flags.get(name) is not None
  ]
  return ''.join(f', {part}' for part in parts)


def _colors(groups: Sequence[results.Group]) -> list[int]:
  """A system's own color for its first group, and for others what is left."""
  own = [_ORDER.index(group.config['algorithm']) for group in groups]
  free = (color for color in itertools.count() if color not in own)
  return [
      color if color not in own[:i] else next(free) for i, color in enumerate(own)
  ]
