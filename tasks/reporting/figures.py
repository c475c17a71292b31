"""The paper's figures from runs: accuracy over rounds and uplink, and all of them over p."""

from collections.abc import Iterable, Sequence
import dataclasses
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

# With more curves than this, a figure leaves some out, and counts them.
_MOST_CURVES = 6
# A label has more words on flags only where groups would have the same without them.
_MOST_WORDS = 3
# A curve over p has at least so many.
_FEWEST_RATIOS = 3
_PERCENT_BELOW = 25
_ACCURACY = 'accuracy (%)'
_BEST = 'best accuracy (%)'
_LOSS = 'last test loss'
_UPLINK = 'uplink a client (MB, average)'
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
    'fedsmp_released', settings_lib.PUBLIC_ONLY, 'fedsmp_head', 'fedavg_head',
)
_TITLES = {
    'fedsmp_topk': 'Fed-SMP top-k', 'fedsmp_randk': 'Fed-SMP rand-k',
    'fedsmp_released': 'Fed-SMP past releases', 'dp_fedavg': 'DP-FedAvg', 'fedavg': 'FedAvg',
    'fedavg_topk': 'FedAvg top-k', 'fedavg_randk': 'FedAvg rand-k',
    'fedsmp_head': 'Fed-SMP last layer', 'fedavg_head': 'FedAvg last layer',
    settings_lib.PUBLIC_ONLY: 'public data alone',
}
# What a person calls a flag with a value; others are 'flag = value'.
_WORDS = {
    'warm_start': lambda value: 'warm start',
    'whiten': lambda value: 'whitened',
    'clip': lambda value: f'C = {value:g}',
    'rounds': lambda value: f'{value:,} round{"s" * (value != 1)}',
    'clients_per_round': lambda value: f'r = {value}',
    'sampling': lambda value: {'poisson': 'Poisson sampling', 'fixed': 'fixed cohorts'}[value],
    'server_learning_rate': lambda value: f'server rate {value:g}',
    'server_schedule': lambda value: 'falling server rate',
    'clip_schedule': lambda value: 'falling C',
    'local_epochs': lambda value: f'{value} local epoch{"s" * (value != 1)}',
    'local_steps': lambda value: f'{value} local steps',
    'public_examples': lambda value: f'{value:,} public examples',
    'public_steps': lambda value: f'{value} public steps',
    'learning_rate': lambda value: f"clients' rate {value:g}",
    'explore': lambda value: f'{100 * value:g} % of coordinates random',
    'precondition': lambda value: f'values times magnitude^-{value:g}',
    'predict': lambda value: f'{value:g} of past releases predicted',
    'server_filter': lambda value: f'server filter {value}',
    'server_optimizer': lambda value: f'{value} on the server',
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
    The ladder, if the steps of the task's were run; accuracy against what it costs, of three
    settings or more; Figure 2; Figure 3 and the trade-off between privacy and accuracy, if a
    system has complete runs at three p; and private systems over p, if two have.
  """
  task = groups[0].config['task']
  complete = [group.complete for group in groups if group.complete]
  found = [
      _ladder(task, complete),
      _costs(task, complete),
      _over_rounds(task, groups),
      _over_p(task, complete),
      _trade_off(task, complete),
      _systems(task, complete),
  ]
  return [figure for figure in found if figure is not None]


def label(group: results.Group, with_p: bool = True, with_sigma: bool = True) -> str:
  """A few words on what a group is."""
  text = _TITLES[group.config['algorithm']]
  if with_p and group.p < 1:
    text += f', p = {group.p:.3g}'
  if with_sigma and group.noise_multiplier is not None:
    text += f', sigma = {group.noise_multiplier:.3g}'
  return text


def _ladder(task: str, groups: Sequence[results.Group]) -> Optional[drawing.Figure]:
  """Final accuracy of the runs that the grid ladder/TASK lists, over the seeds that all of them have.

  The first paragraph's are steps, joined by a line; the others' are rivals beside them.
  """
  name = f'ladder/{task}'
  if name not in grids.names():
    return None
  paragraphs = grids.read(name)
  steps, *beside = [
      [(cell.title, group) for cell in paragraph for group in groups if _is_of(group, cell)]
      for paragraph in paragraphs
  ]
  beside = list(itertools.chain(*beside))
  seeds = [{run.config['seed'] for run in group.runs} for _, group in (*steps, *beside)]
  if len(steps) < _FEWEST_RATIOS or not (shared := set.intersection(*seeds)):
    return None

  def restricted(group):
    return results.Group(tuple(run for run in group.runs if run.config['seed'] in shared))

  used = [restricted(group) for _, group in (*steps, *beside)]
  finals = [group.mean_and_std('final') for group in used]
  titles = [title for title, _ in (*steps, *beside)]
  accuracies = np.array([mean for mean, _ in finals])
  spreads = np.array([std or 0.0 for _, std in finals])
  heights = -np.arange(len(titles), dtype=float)
  num = len(steps)
  curves = [
      drawing.Curve(
          '', accuracies[part], heights[part], style=style, x_spread=spreads[part], color=color
      )
      for part, style, color in ((slice(num), 'points', 0), (slice(num, None), 'marks', 1))
      if titles[part]
  ]
  ticks = [f'{title}: {mean:.1f} %' for title, mean in zip(titles, accuracies)]
  panel = drawing.Panel('', 'final accuracy (%)', '', curves, ticks=ticks)
  of_grid = [cell.title for cell in paragraphs[0]]
  places = [of_grid.index(title) for title in titles[:num]]
  # A step after one that was not run has the gain of both, and no name for it.
  gains = np.where(np.diff(places) == 1, np.diff(accuracies[:num]), 0.0)
  lowest, highest = int(np.argmin(gains)), int(np.argmax(gains))
  parts = []
  if gains[lowest] < 0:
    parts.append(f'"{titles[lowest + 1]}" loses most ({-gains[lowest]:.1f} points)')
  if gains[highest] > 0:
    parts.append(f'"{titles[highest + 1]}" wins most ({gains[highest]:.1f})')
  missing = [title for title in of_grid if title not in titles]
  notes = [f'not run: {", ".join(missing)}'] if missing else []
  title = ', '.join(parts) or 'no step changes accuracy'
  return _figure(task, 'ladder', title, [panel], used, notes)


def _costs(task: str, groups: Sequence[results.Group]) -> Optional[drawing.Figure]:
  """Final accuracy against the uplink, and against epsilon where runs differ in it."""
  if len(groups) < _FEWEST_RATIOS:
    return None
  panels = []
  for column, x_label in (
      ('uplink_megabytes', _UPLINK), ('epsilon', 'epsilon (valid accounting)')
  ):
    points = [
        (group, x) for group in groups if (x := group.last(column)) and np.isfinite(x)
    ]
    # Two points show no relation; one value, but for its last digits, is no axis.
    if len(points) < _FEWEST_RATIOS or len({f'{x:.3g}' for _, x in points}) < 2:
      continue
    present = {group.config['algorithm'] for group, _ in points}
    curves = []
    for algorithm in sorted(_most_accurate_systems(groups) & present, key=_ORDER.index):
      some = [(group, x) for group, x in points if group.config['algorithm'] == algorithm]
      measured = [group.mean_and_std('final') for group, _ in some]
      curves.append(
          drawing.Curve(
              _TITLES[algorithm], np.array([x for _, x in some]),
              np.array([mean for mean, _ in measured]),
              np.array([std or 0.0 for _, std in measured]),
              _ORDER.index(algorithm), 'marks', names=_labels([group for group, _ in some]),
          )
      )
    panels.append(drawing.Panel('', x_label, 'final accuracy (%)', curves, True))
  if not panels:
    return None
  left_out = {g.config['algorithm'] for g in groups} - _most_accurate_systems(groups)
  names = [_TITLES[algorithm] for algorithm in sorted(left_out, key=_ORDER.index)]
  notes = [f'left out, less accurate: {", ".join(names)}'] if names else []
  notes += [
      f'without uplink: {name}, {group.mean_and_std("final")[0]:.1f} %'
      for group, name in zip(groups, _labels(groups)) if not group.last('uplink_megabytes')
  ]
  return _figure(task, 'costs', _ends_highest(groups), panels, groups, notes)


def _most_accurate_systems(groups: Sequence[results.Group]) -> set[str]:
  """The systems that a figure has room for, by the best setting of each."""
  ends = {}
  for group in groups:
    end = group.mean_and_std('final')[0]
    algorithm = group.config['algorithm']
    ends[algorithm] = max(end, ends.get(algorithm, end))
  return set(sorted(ends, key=ends.get)[-_MOST_CURVES:])


def _ends_highest(groups: Sequence[results.Group]) -> str:
  """A sentence on which system ends with the highest accuracy, and which private one does."""
  ends = [group.mean_and_std('final')[0] for group in groups]
  private = [i for i, group in enumerate(groups) if group.noise_multiplier is not None]
  several_starts = len({group.config['flags'].get('warm_start') for group in groups}) > 1
  several_seeds = len({len(group.runs) for group in groups}) > 1

  def text(i, verb):
    group = groups[i]
    # A title names systems; the legend has their flags.
    name = _TITLES[group.config['algorithm']]
    if several_starts and group.config['flags'].get('warm_start'):
      name += ', warm start,'
    # A mean over fewer seeds may be the highest by their luck.
    num = len(group.runs)
    seeds = f' ({num} seed{"s" * (num > 1)})' if several_seeds else ''
    uplink = group.last('uplink_megabytes')
    at = f' at {uplink:.3g} MB uplink a client' if uplink else ''
    return f'{name}{verb} {ends[i]:.1f} %{seeds}{at}'

  best = int(np.argmax(ends))
  parts = [text(best, ' ends highest,')]
  if private and best not in private:
    parts.append(f'of private systems {text(max(private, key=lambda i: ends[i]), ":")}')
  return '; '.join(parts)


def _conditions(groups: Sequence[results.Group]) -> list[str]:
  """What the runs of a figure spent and share: epsilon, sigma and seeds."""
  parts = []
  private = [group for group in groups if group.noise_multiplier]
  if private:
    known = [x for group in private if (x := group.last('epsilon')) is not None]
    how = 'valid with fresh noise' if any(g.config['seed'] is not None for g in private) else 'valid'
    parts.append(f'epsilon ({how}): {_range(known) if known else "not known"}')
    parts.append(f'sigma: {_range([group.noise_multiplier for group in private])}')
  seeds = [len(group.runs) for group in groups]
  parts.append(f'seeds a setting: {_range(seeds)}')
  if max(seeds) > 1:
    parts.append('bands and bars are one standard deviation')
  return parts


def _range(values: Sequence[float]) -> str:
  low, high = f'{min(values):.3g}', f'{max(values):.3g}'
  return low if low == high else f'{low} to {high}'


def _is_of(group: results.Group, cell: grids.Cell) -> bool:
  """Whether a group's runs have a cell's flags, whatever their seed."""
  expected, flags = cell.identity, group.config['flags']
  # Not a run that the report cuts.
  whole = all(run.rounds == expected['rounds'] for run in group.runs)
  return whole and all(flags.get(name) == value for name, value in expected.items() if name != 'seed')


def _over_rounds(task: str, groups: Sequence[results.Group]) -> drawing.Figure:
  """Figure 2: accuracy over rounds and over the uplink."""
  num, notes = len(groups), []
  if num > _MOST_CURVES:
    drawn = [group for group in groups if _is_drawn_by_the_paper(group)]
    which = 'the paper\'s own'
    # One curve compares nothing, and the paper draws no figure without a private system.
    private = [group for group in drawn if group.noise_multiplier]
    if not private or not 1 < len(drawn) <= _MOST_CURVES:
      drawn = sorted(groups, key=lambda group: group.mean_and_std('final')[0])[-_MOST_CURVES:]
      which = 'the most accurate'
    names = [
        name for name, group in zip(_labels(groups), groups)
        if not any(group is one for one in drawn)
    ]
    # More names than curves would be a second figure.
    text = f'left out: {"; ".join(names)}'
    if len(names) > _MOST_CURVES:
      text = f'{len(names)} are left out, and in the tables'
    notes = [f'{which} {len(drawn)} of {num} settings; {text}']
    groups = drawn
  groups = sorted(groups, key=lambda group: _ORDER.index(group.config['algorithm']))
  last_round = max(group.runs[0].columns['round'][-1] for group in groups)
  by_round, by_uplink, lasts = [], [], []
  names = _labels(groups)
  for group, name, color in zip(groups, names, _colors(groups)):
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
  # The first rounds are steep, and tell systems apart least. After a warm start they are not.
  lowest = min(float(curve.y.min()) for curve in by_round)
  bottom = max(0.0, min(lasts) - _PERCENT_BELOW, lowest - 1)
  panels = [drawing.Panel('', 'round', _ACCURACY, by_round, bottom=bottom)]
  if by_uplink:
    panels.append(drawing.Panel('', _UPLINK, _ACCURACY, by_uplink, True, bottom))
  return _figure(
      task, 'rounds', _ends_highest(groups), panels, groups, notes
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
      for i, (text, curve) in enumerate(found.items()):
        name = f'{_TITLES[algorithm]}; at p = 1 {_TITLES[at_one]}{text}'
        losses.append(_points(name, curve, 'final_loss', color + 2 * i))
        accuracies.append(_points(name, curve, 'best', color + 2 * i))
      if found:
        accuracies += _papers(task, (algorithm, at_one), noise, color)
    if losses:
      panels += [
          drawing.Panel(title, 'compression ratio p', _LOSS, losses, True),
          drawing.Panel(title, 'compression ratio p', _BEST, accuracies, True),
      ]
  return _over_p_figure(task, 'ratio', panels, groups)


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
      for i, (text, curve) in enumerate(found.items()):
        epsilon = curve[0].last('epsilon')
        spent = 'not known' if epsilon is None else f'{epsilon:.3g}'
        name = f'sigma = {sigma:.3g}, epsilon = {spent}{text}'
        curves.append(_points(name, curve, 'best', color + i * len(sigmas)))
      if found:
        curves += _papers(task, (f'fedsmp_{kind}',), sigma, color)
    if curves:
      panels.append(drawing.Panel(title, 'compression ratio p', _BEST, curves, True))
  return _over_p_figure(task, 'trade_off', panels, groups)


def _systems(task: str, groups: Sequence[results.Group]) -> Optional[drawing.Figure]:
  """Private systems beside each other: final accuracy over p, a panel for each sigma."""
  panels = []
  for sigma in sorted({g.noise_multiplier for g in groups if g.noise_multiplier is not None}):
    some = [group for group in groups if group.noise_multiplier == sigma]
    found = [
        curve
        for algorithm in _ORDER
        for curve in _over_several_p(
            [g for g in some if g.config['algorithm'] == algorithm]
        ).values()
    ]
    if len({curve[0].config['algorithm'] for curve in found}) < 2:
      continue
    found += [[group] for group in some if group.p == 1]
    firsts = [curve[0] for curve in found]
    names = _differing(firsts, _NOT_ALONG_A_CURVE)
    curves = [
        _points(
            _TITLES[first.config['algorithm']] + _values(first, names), curve, 'final', color
        )
        for first, curve, color in zip(firsts, found, _colors(firsts))
    ]
    title = f'sigma = {sigma:.3g}'
    panels.append(
        drawing.Panel(title, 'compression ratio p', 'final accuracy (%)', curves, True)
    )
  return _over_p_figure(task, 'systems', panels, groups)


def _over_p_figure(
    task: str, name: str, panels: Sequence[drawing.Panel], groups: Sequence[results.Group]
) -> Optional[drawing.Figure]:
  """A figure over p, titled by the highest measured point; None without panels.

  A panel has the curves that reach highest, and the paper's beside them.
  """
  if not panels:
    return None
  kept, left_out = [], 0
  for panel in panels:
    is_loss = panel.y_label == _LOSS
    ranked = sorted(
        panel.curves, key=lambda curve: min(curve.y) if is_loss else -max(curve.y)
    )[:_MOST_CURVES]
    left_out += len(panel.curves) - len(ranked)
    curves = [curve for curve in panel.curves if any(curve is one for one in ranked)]
    # A measured curve and the paper's share a color; no others do.
    colors = {color: i for i, color in enumerate(dict.fromkeys(curve.color for curve in curves))}
    if max(colors) >= drawing.NUM_COLORS:
      curves = [dataclasses.replace(curve, color=colors[curve.color]) for curve in curves]
    kept.append(dataclasses.replace(panel, curves=curves))
  ends = [
      (float(y), float(x), panel, curve)
      for panel in kept if panel.y_label != _LOSS
      for curve in panel.curves if curve.style != 'reference'
      for x, y in zip(curve.x, curve.y)
  ]
  notes = [f'{left_out} less accurate curves are left out'] if left_out else []
  title = 'only the paper\'s curves have room'
  if ends:
    y, x, panel, curve = max(ends, key=lambda end: end[0])
    place = f'{panel.title}, {curve.label}' if panel.title else curve.label
    title = f'{place.split("; ")[0]}, is highest at p = {x:.3g}: {y:.1f} %'
  return _figure(task, name, title, kept, groups, notes)


def _figure(
    task: str, name: str, title: str, panels: Sequence[drawing.Panel],
    groups: Sequence[results.Group], notes: Sequence[str] = (),
) -> drawing.Figure:
  """A figure of a task, with what its runs share below."""
  note = '; '.join([*notes, *_conditions(groups)])
  return drawing.Figure(
      f'{task}_{name}', f'{datasets.TASKS[task].title}: {title}', panels,
      f'{note[:1].upper()}{note[1:]}.',
  )


def _over_several_p(groups: Sequence[results.Group]) -> dict[str, list[results.Group]]:
  """Groups at three p or more that are alike in all other flags, by what distinguishes them.

  Those at p = 1 end each curve that they are like but in how coordinates are chosen.
  """
  curves = []
  for group in sorted(groups, key=lambda group: group.p):
    matching = [
        curve for curve in curves
        if not _differing(
            (curve[0], group), (*_NOT_ALONG_A_CURVE, *(_OF_A_CHOICE if group.p == 1 else ()))
        )
    ]
    for curve in matching:
      curve.append(group)
    if not matching:
      curves.append([group])
  found = [curve for curve in curves if len({g.p for g in curve}) >= _FEWEST_RATIOS]
  firsts = [curve[0] for curve in found]
  names = _differing(firsts, _NOT_ALONG_A_CURVE)
  return {_values(first, names): curve for first, curve in zip(firsts, found)}


def _points(
    name: str, groups: Sequence[results.Group], attribute: str, color: int
) -> drawing.Curve:
  """A curve over p with a point for each, its groups' mean."""
  rounds = sorted({run.rounds for group in groups for run in group.runs})
  if rounds != [datasets.TASKS[groups[0].config['task']].settings.rounds]:
    name += f'; {" or ".join(f"{t:,}" for t in rounds)} round{"s" * (rounds != [1])}'
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
  names = {system: _distinguishing(some) for system, some in by_system.items()}
  # Where some systems begin at public weights, a reader asks which.
  if any('warm_start' in some for some in names.values()):
    names = {system: some | {'warm_start'} for system, some in names.items()}
  several_p = len({f'{group.p:.3g}' for group in groups if group.p < 1}) > 1
  sigmas = {group.noise_multiplier for group in groups if group.noise_multiplier is not None}
  several_sigmas = len({f'{sigma:.3g}' for sigma in sigmas}) > 1
  return [
      label(group, several_p, several_sigmas) + _values(group, names[group.config['algorithm']])
      for group in groups
  ]


def _distinguishing(groups: Sequence[results.Group]) -> set[str]:
  """The flags in which groups of one system differ; of many, those that name each group."""
  def num_named(names):
    return len({(g.p, g.noise_multiplier, _values(g, names)) for g in groups})

  names = _differing(groups, _IN_LABELS)
  # The last in the alphabet are the details: a server's schedule beside its rate.
  for name in sorted(names - {'warm_start'}, reverse=True):
    if len(names) > _MOST_WORDS and num_named(names - {name}) == num_named(names):
      names.remove(name)
  return names


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
      _WORDS[name](flags[name]) if name in _WORDS else f'{name} = {results.text(flags[name])}'
      for name in sorted(names)
      # The name of a system without rounds implies both.
      if flags.get(name) is not None
      and not (group.config['rounds'] == 0 and name in ('rounds', 'warm_start'))
  ]
  return ''.join(f', {part}' for part in parts)


def _colors(groups: Sequence[results.Group]) -> list[int]:
  """A system's own color for its first group, and for others what is left."""
  own = [_ORDER.index(group.config['algorithm']) for group in groups]
  free = (color for color in itertools.count() if color not in own)
  return [
      color if color not in own[:i] else next(free) for i, color in enumerate(own)
  ]
