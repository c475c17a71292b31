"""Tables of the paper's results next to the runs that reproduce them."""

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from tasks import methods
from tasks.cli import plugins
from tasks.experiments import paper_tables
from tasks.reporting import cells
from tasks.reporting import results

_DP_FEDAVG = 'dp_fedavg'
_DIFFERENCES, _NONE = 'differs from the paper in', 'nothing'
# Readings of rand-k, by `Group.unscaled`.
_NAMES = {False: 'scaled', True: 'unscaled'}


def tables(groups: Sequence[results.Group]) -> list[cells.Table]:
  """Returns Tables 1 to 9, each in both readings of rand-k if both were run, and uplinks."""
  found = []
  for number in paper_tables.TITLES:
    found.append(_table(number, groups))
    if number in paper_tables.SUMMARIES:
      found.append(_both_readings(number, groups))
  return [*found, _uplink_to_target(groups)]


def has_row_for(group: results.Group) -> bool:
  """Returns whether the paper has a row that a group's runs are to reproduce."""
  return any(_reproduces(group, row) for row in paper_tables.rows())


def _table(number: int, groups: Sequence[results.Group]) -> cells.Table:
  """Returns one of Tables 1 to 9: each reproduced row, next to its runs."""
  paper_rows = [row for row in paper_tables.rows() if row.table == number]
  matches = [(row, group) for row in paper_rows for group in groups if _reproduces(group, row)]
  note = f'{len({row for row, _ in matches})} of {len(paper_rows)} cells were run.'
  if any(group.reading for _, group in matches):
    note += (
        ' Algorithm 1 multiplies the masked values of rand-k by d/k, Definition 6 does not: both are'
        ' readings of the paper, and neither counts as a difference.'
    )
  if paper_rows[0].task == 'shakespeare':
    note += (
        ' The paper\'s accounting is for the number of clients that the paper assumes, the sound'
        ' accountant is for the clients in the data.'
    )
  if number == 7:
    note += (
        ' The paper\'s header (p = 0.05 to 0.8) contradicts its Table 2; p here follows from'
        ' the row of epsilon = 1.01.'
    )
  rows = [_row(row, group) for row, group in matches]
  return cells.Table(f'Table {number}: {paper_tables.TITLES[number]}', rows, note)


def _row(row: paper_tables.Row, group: results.Group) -> dict[str, str]:
  """Returns a row of the paper next to a group of runs."""
  return {
      'algorithm': row.algorithm,
      'p': f'{row.p:g}',
      'reading': group.reading,
      'sigma': cells.number(row.noise_multiplier, '{:g}'),
      'epsilon, paper\'s table': cells.number(row.epsilon, '{}'),
      'uplink, paper (MB)': cells.number(row.uplink_megabytes, '{}'),
      'paper (best, %)': cells.accuracy(row.accuracy, row.std),
      **cells.measured(group),
      'difference': cells.mark(f'{_error(row, group):+.2f}', group),
      _DIFFERENCES: ', '.join(_differences(group, row)) or _NONE,
  }


def _both_readings(number: int, groups: Sequence[results.Group]) -> cells.Table:
  """Returns the rand-k rows of a table next to both readings, if unscaled rand-k was run."""
  rows, errors = [], {False: {}, True: {}}
  for row in paper_tables.rows():
    if row.table != number or row.algorithm != 'fedsmp_randk':
      continue
    texts, differences = {}, {}
    for unscaled, name in _NAMES.items():
      group = _exact(row, unscaled, groups)
      texts[f'{name} (best, %)'] = cells.accuracy_of(group, _value(group)) if group else ''
      texts[f'seeds, {name}'] = str(len(group.runs)) if group else ''
      differences[f'difference, {name}'] = ''
      if group:
        errors[unscaled][row.p] = error = _error(row, group)
        differences[f'difference, {name}'] = cells.mark(f'{error:+.2f}', group)
    if any(differences.values()):
      paper = {'p': f'{row.p:g}', 'paper (best, %)': cells.accuracy(row.accuracy, row.std)}
      rows.append(paper | texts | differences)
  shared = errors[False].keys() & errors[True].keys()
  means = [
      f'{_NAMES[unscaled]} {np.mean([abs(by_p[p]) for p in chosen]):.2f} points over'
      f' {whose.format(len(chosen))}'
      for whose, only in (('the {} values of p that both have', shared), ('its own {}', None))
      for unscaled, by_p in errors.items() if (chosen := by_p if only is None else only)
  ]
  note = f'Mean absolute difference from the paper: {"; ".join(means)}.'
  return cells.Table(f'Table {number}, rand-k in both readings', rows if errors[True] else [], note)


def _exact(
    row: paper_tables.Row, unscaled: bool, groups: Sequence[results.Group]
) -> Optional[results.Group]:
  """Returns the group of most seeds that differs from a row in nothing, in a reading of rand-k."""
  exact = [
      group for group in groups
      if group.unscaled == unscaled and _reproduces(group, row) and not _differences(group, row)
  ]
  return max(exact, key=lambda group: len(group.runs), default=None)


def _uplink_to_target(groups: Sequence[results.Group]) -> cells.Table:
  """Returns the uplink until the accuracies for which section 5 claims a saving are reached."""
  rows = []
  for task, target in paper_tables.TARGETS.items():
    measured = [
        group for group in groups
        if group.config['task'] == task and group.can_measure_uplink_to(target.accuracy)
    ]
    dense = [group for group in measured if group.config['algorithm'] == _DP_FEDAVG]
    order = [*methods.NAMES, *(group.config['algorithm'] for group in measured)]
    measured.sort(key=lambda group: (
        order.index(group.config['algorithm']), group.unscaled, group.p
    ))
    for group in measured:
      algorithm, reference = group.config['algorithm'], _reference(group, dense)
      reached = group.first_to_reach(target.accuracy)
      round_num, uplink = np.mean(reached, axis=0) if reached else (np.nan, np.nan)
      until = reference.first_to_reach(target.accuracy) if reference else []
      needed = np.mean(until, axis=0)[1] if until else np.nan
      saving = 100 * (1 - uplink / needed) if needed > 0 else np.nan
      is_drawn = target.p.get(algorithm) == group.p
      rows.append({
          'task': task,
          'method': plugins.title(algorithm, methods.METHODS),
          'p': f'{group.p:.3g}',
          'reading': group.reading,
          'sigma': cells.number(group.noise_multiplier),
          'target (%)': f'{target.accuracy:g}',
          'first round': cells.mark(cells.number(round_num, '{:,.4g}') or 'not reached', group),
          'seeds': f'{len(reached)} of {len(group.runs)}',
          'uplink to target (MB)': cells.mark(cells.number(uplink) or 'not reached', group),
          'saving (%)': '' if group is reference else cells.number(saving, '{:.1f}'),
          'saving, paper (%)': f'{target.savings[algorithm]:g}' if is_drawn else '',
          _DIFFERENCES: ', '.join(_setting_differences(group)) or _NONE,
      })
  note = (
      'The first round is the first evaluated one whose test accuracy is at least the target, as a mean'
      ' over the seeds that reach it. The uplink is what a client uploads until then. Runs are evaluated'
      ' at intervals, so that the target may have been reached up to one interval earlier. The saving'
      ' is against the runs of DP-FedAvg in this report with the most similar flags. It is empty if'
      ' none of those reaches the target. The paper names a saving for one p per mask. Runs whose'
      ' initial weights reach the target are left out.'
  )
  return cells.Table('Uplink to a target accuracy', rows, note)


def _reference(
    group: results.Group, dense: Sequence[results.Group]
) -> Optional[results.Group]:
  """Returns the runs of DP-FedAvg to compare a group with: of its sigma, then of most of its flags."""
  flags = group.config['flags']
  return min(
      dense, default=None,
      key=lambda other: (
          group.noise_multiplier is not None
          and not paper_tables.is_same_sigma(group.noise_multiplier, other.noise_multiplier),
          len(other.differences(flags, (*results.NOT_COMPARED_WITH_PAPER, 'algorithm'))),
      ),
  )


def _value(group: results.Group) -> str:
  """Returns which of `Run.values` to compare with the paper, which has the best over rounds."""
  return 'final' if group.config['sampled'] else 'best'


def _error(row: paper_tables.Row, group: results.Group) -> float:
  """Returns how far a group's accuracy is above the paper's."""
  return group.mean(_value(group)) - row.accuracy


def _identity(config: dict[str, Any]) -> Optional[dict[str, Any]]:
  return paper_tables.identity(config['task'], config['algorithm'])


def _reproduces(group: results.Group, row: paper_tables.Row) -> bool:
  """Returns whether runs are to reproduce a row: with as many rounds, and the test set."""
  config = group.config
  if not group.complete or group.uses_validation_set:
    return False
  return (
      row.is_of(config['task'], config['algorithm'], group.p, group.noise_multiplier)
      and group.rounds_done >= _identity(config)['rounds']
  )


def _differences(group: results.Group, row: paper_tables.Row) -> list[str]:
  """Returns what differs between a group's runs and the paper's."""
  rounds, sigma = group.rounds_done, group.noise_multiplier
  paper_rounds, parts = _identity(group.config)['rounds'], []
  if rounds != paper_rounds:
    parts.append(f'{rounds} rounds, not {paper_rounds:,}')
  if row.noise_multiplier and abs(sigma / row.noise_multiplier - 1) > 0.005:
    parts.append(f'sigma = {sigma:.3g}')
  return parts + _setting_differences(group)


def _setting_differences(group: results.Group) -> list[str]:
  """Returns the flags, but p, sigma and rounds, that are not of the paper's setting."""
  identity = _identity(group.config) or {}
  return group.differences(identity, results.NOT_COMPARED_WITH_PAPER)
