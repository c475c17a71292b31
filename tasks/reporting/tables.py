"""Tables of runs next to the paper's, and a report of them in Markdown."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any, Optional

from matplotlib import figure as mpl_figure

from fedsmp_tff import errors
from tasks import datasets
from tasks import systems
from tasks.cli import grids
from tasks.cli import paper_tables
from tasks.cli import settings as settings_lib
from tasks.reporting import results

# Marks an accuracy that no epsilon covers.
_OUTSIDE = '†'
_ABOUT = (
    'Best: maximum test accuracy over the evaluated rounds (the paper: over all rounds), if'
    ' evaluations use all test examples. Final: test accuracy after the last round. Gain: final'
    ' accuracy minus that of the initial weights, within each run. Mean ± standard deviation over'
    ' seeds.'
    ' "epsilon, sound accountant": for the sampling of the run. "Paper\'s'
    ' accounting": RDP for Poisson sampling, whatever the sampling of the run. A private run with a'
    ' seed is simulated: its epsilon is what fresh noise would give.'
    f' Accuracies with {_OUTSIDE} are exact functions of clients\' own examples, OUTSIDE (epsilon,'
    ' delta). Losses are on the test set; the paper\'s Figure 3 has training losses.'
)


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of text; rows map columns, the same in all rows, to texts."""

  title: str
  rows: Sequence[dict[str, str]]
  note: str = ''


def all_tables(groups: Sequence[results.Group]) -> list[Table]:
  """Returns a report's tables with a row: the paper's, other runs, and a list of all runs."""
  tables = [_table_of_paper(number, groups) for number in paper_tables.TITLES]
  tables += [_other_runs(groups), _list_of_runs(groups)]
  return [dataclasses.replace(t, rows=_without_empty_columns(t.rows)) for t in tables if t.rows]


def _without_empty_columns(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
  columns = [name for name in rows[0] if any(row[name] for row in rows)]
  # Runs, which have names and flags, may be somebody else's.
  return [{name: errors.printable(row[name]) for name in columns} for row in rows]


def _table_of_paper(number: int, groups: Sequence[results.Group]) -> Table:
  """Returns one of Tables 1 to 9: each reproduced row, next to its runs."""
  paper_rows = [row for row in paper_tables.rows() if row.table == number]
  matches = [(row, group) for row in paper_rows for group in groups if _reproduces(group, row)]
  note = f'{len({row for row, _ in matches})} of {len(paper_rows)} cells were run.'
  if paper_rows[0].task == 'shakespeare':
    note += (
        ' The paper\'s accounting is for the number of clients that the paper assumes, the valid'
        ' epsilon for the clients in the data.'
    )
  if number == 7:
    note += (
        ' The paper\'s header (p = 0.05 to 0.8) contradicts its Table 2; p here follows from'
        ' the row of epsilon = 1.01.'
    )
  rows = [_paper_row(row, group) for row, group in matches]
  return Table(f'Table {number}: {paper_tables.TITLES[number]}', rows, note)


def _paper_row(row: paper_tables.Row, group: results.Group) -> dict[str, str]:
  """Returns a row of the paper next to a group of runs."""
  # The paper reports the best accuracy over rounds.
  name = 'final' if group.config['sampled'] else 'best'
  return {
      'algorithm': row.algorithm,
      'p': f'{row.p:g}',
      'sigma': _text(row.noise_multiplier, '{:g}'),
      'epsilon, paper\'s table': _text(row.epsilon, '{}'),
      'uplink, paper (MB)': _text(row.uplink_megabytes, '{}'),
      'paper (best, %)': _accuracy(row.accuracy, row.std),
      **_measured(group),
      'difference': _marked(f'{group.mean(name) - row.accuracy:+.2f}', group),
      'differs from the paper in': ', '.join(_differences(group, row)) or 'nothing',
  }


def _measured(group: results.Group) -> dict[str, str]:
  """Returns the columns of measurements."""
  return {
      'best (%)': _accuracy_of(group, 'best'),
      'final (%)': _accuracy_of(group, 'final'),
      'gain (points)': _marked(_accuracy(*group.mean_and_std('gain'), '{:+.2f}'), group),
      'final, padding masked (%)': _accuracy_of(group, 'masked'),
      'seeds': str(len(group.runs)),
      'epsilon, paper\'s accounting': _text(group.mean('epsilon_paper')),
      'epsilon, sound accountant': _text(group.mean('epsilon')),
      'uplink (MB)': _text(group.mean('uplink_megabytes')),
  }


def _other_runs(groups: Sequence[results.Group]) -> Table:
  """Returns the runs without a counterpart in the paper and the incomplete ones, best first."""
  others = [
      group for group in groups if not any(_reproduces(group, row) for row in paper_tables.rows())
  ]
  tasks = [group.config['task'] for group in groups]
  others.sort(key=lambda group: (tasks.index(group.config['task']), -group.mean('final')))
  rows = [
      {
          'task': group.config['task'],
          'algorithm': group.config['algorithm'],
          'p': f'{group.p:.3g}',
          'sigma': _text(group.noise_multiplier),
          'rounds': _rounds(group),
          **_measured(group),
          'with': ', '.join(_own_settings(group)),
      }
      for group in others
  ]
  return Table('Runs without a counterpart in the paper, and incomplete runs', rows)


def _list_of_runs(groups: Sequence[results.Group]) -> Table:
  """Returns the table with a row per run."""
  rows = [
      {
          'run': run.path.name,
          'task': run.config['task'],
          'method': group.label,
          'seed': str(run.config['seed']),
          'rounds': _rounds(group),
          'accuracy (%)': _marked(f'{run.values["final"]:.2f}', group),
          'epsilon, sound accountant': _text(run.values['epsilon']),
          'minutes': f'{run.seconds / 60:.1f}',
      }
      for group in groups for run in group.runs
  ]
  return Table('List of runs', rows)


def _rounds(group: results.Group) -> str:
  length = group.config['rounds']
  return str(length) if group.complete else f'{group.rounds_done} of {length}'


def _reproduces(group: results.Group, row: paper_tables.Row) -> bool:
  """Returns whether runs are to reproduce a row: with as many rounds, and the test set."""
  config = group.config
  if not group.complete or group.uses_validation_set:
    return False
  return (
      row.is_of(config['task'], config['algorithm'], group.p, group.noise_multiplier)
      and group.rounds_done >= _identity(row)['rounds']
  )


@functools.cache
def _identity(row: paper_tables.Row) -> dict[str, Any]:
  """Returns the `flags` in the config.json of a run that reproduces a row exactly."""
  return grids.Cell.of(paper_tables.flags_of(row)).identity


def _differences(group: results.Group, row: paper_tables.Row) -> list[str]:
  """Returns the flags in which a group's runs differ from the paper's."""
  paper, rounds, sigma = _identity(row), group.rounds_done, group.noise_multiplier
  parts = []
  if rounds != paper['rounds']:
    parts.append(f'{rounds} rounds, not {paper["rounds"]:,}')
  if row.noise_multiplier and abs(sigma / row.noise_multiplier - 1) > 0.005:
    parts.append(f'sigma = {sigma:.3g}')
  return parts + group.differences(paper)


def _own_settings(group: results.Group) -> list[str]:
  """Returns the flags of a group's runs that are not the defaults of its task and algorithm.

  The defaults of modules that no flag of this command named are unknown, and so all are returned.
  """
  task, algorithm = group.config['task'], group.config['algorithm']
  if task not in datasets.TASKS or algorithm not in systems.SYSTEMS:
    return group.differences(dict.fromkeys(group.config['flags']), (*results.NOT_COMPARED, 'task'))
  settings, *_ = settings_lib.parse([f'--task={task}', f'--algorithm={algorithm}'])
  return group.differences(settings_lib.identity(settings))


def _accuracy_of(group: results.Group, name: str) -> str:
  """Returns mean and standard deviation of an accuracy, marked if outside the guarantee."""
  return _marked(_accuracy(*group.mean_and_std(name)), group)


def _marked(text: str, group: results.Group) -> str:
  return f'{text} {_OUTSIDE}' if text and group.outside_guarantee else text


def _accuracy(mean: float, std: Optional[float], form: str = '{:.2f}') -> str:
  return _text(mean, form) + _text(std, ' ± {:.2f}')


def _text(value: Optional[float], form: str = '{:.3g}') -> str:
  """Returns a number as text; '' for None and NaN."""
  return '' if value is None or math.isnan(value) else form.format(value)


def markdown(tables: Sequence[Table], figures: Mapping[str, mpl_figure.Figure]) -> str:
  """Returns tables, and figures by the names of their files without suffix, as Markdown."""
  parts = ['# Results compared with the paper', _ABOUT]
  parts += [f'![{figure.get_suptitle()}]({name}.png)' for name, figure in figures.items()]
  for table in tables:
    lines = [list(table.rows[0]), ['---'] * len(table.rows[0])]
    lines += [list(row.values()) for row in table.rows]
    parts.append(f'## {table.title}')
    parts.append('\n'.join(f'| {" | ".join(line)} |' for line in lines))
    if table.note:
      parts.append(table.note)
  return '\n\n'.join(parts) + '\n'
