"""Tables of runs next to the paper's, and a report of them in Markdown."""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import math
from typing import Any, Optional

from tasks.cli import grids
from tasks.cli import paper_tables
from tasks.cli import settings as settings_lib
from tasks.reporting import drawing
from tasks.reporting import figures
from tasks.reporting import results

# Marks an accuracy that no epsilon covers.
_OUTSIDE = '†'
NOT_RUN = 'not run'


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of text; rows map columns, the same in all rows, to texts."""

  title: str
  rows: Sequence[dict[str, str]]
  note: str = ''


def all_tables(groups: Sequence[results.Group]) -> list[Table]:
  """Returns a report's tables: the paper's with a run, other runs, a list, the paper's not run."""
  of_paper = [_table_of_paper(number, groups) for number in paper_tables.TITLES]
  tables = [table for table in of_paper if table.note] + _other_runs(groups)
  if groups:
    tables.append(_list_of_runs(groups))
  not_run = '; '.join(f'{t.title} ({len(t.rows)} cells)' for t in of_paper if not t.note)
  return [*tables, Table('Not run', [], f'{not_run}.')] if not_run else tables


def _table_of_paper(number: int, groups: Sequence[results.Group]) -> Table:
  """Returns one of Tables 1 to 9 with runs next to each row; without a note if it has no run."""
  paper_rows = [row for row in paper_tables.rows() if row.table == number]
  measured, not_run, num_run = [], [], 0
  for row in paper_rows:
    complete = [g for g in groups if g.complete and _reproduces(g, row)]
    num_run += bool(complete)
    measured += [_paper_row(row, group.complete, _differences(group, row)) for group in complete]
    if not complete:
      not_run.append(_paper_row(row))
  title = f'Table {number}: {paper_tables.TITLES[number]}'
  if not measured:
    return Table(title, not_run)
  note = f'{num_run} of {len(paper_rows)} cells were run.'
  if paper_rows[0].task == 'shakespeare':
    note += (
        ' The paper\'s accounting is for the number of clients that the paper assumes, the valid'
        ' figure for those in the data.'
    )
  note += _notes([g for g in groups if any(_reproduces(g, row) for row in paper_rows)])
  if number == 7:
    note += (
        ' The paper\'s header (p = 0.05 to 0.8) does not fit its Table 2; p is as it must be'
        ' for the row of epsilon = 1.01.'
    )
  return Table(title, _without_padding(measured + not_run), note)


def _paper_row(
    row: paper_tables.Row, group: Optional[results.Group] = None, differences: str = ''
) -> dict[str, str]:
  """Returns a row of the paper next to a group of complete runs, if any."""
  measured = _measured(group) if group else {}
  difference = ''
  if group:
    # The paper reports the best accuracy over rounds.
    name = 'final' if group.config['sampled'] else 'best'
    difference = f'{group.mean(name) - row.accuracy:+.2f}'
  return {
      'algorithm': row.algorithm,
      'p': f'{row.p:g}',
      'sigma': _text(row.noise_multiplier, '{:g}'),
      'paper (best, %)': _accuracy(row.accuracy, row.std),
      'measured: best (%)': measured.get('best (%)', NOT_RUN),
      'difference': difference,
      'measured: final (%)': measured.get('final (%)', ''),
      'seeds': measured.get('seeds', ''),
      'epsilon, paper\'s table': _text(row.epsilon, '{}'),
      'epsilon, paper\'s accounting': measured.get('epsilon, paper\'s accounting', ''),
      'epsilon, valid': measured.get('epsilon, valid', ''),
      'uplink, paper (MB)': _text(row.uplink_megabytes, '{}'),
      'uplink (MB)': measured.get('uplink (MB)', ''),
      'final, padding masked (%)': _accuracy_of(group, 'masked') if group else '',
      'differs from the paper in': differences,
  }


def _measured(group: results.Group) -> dict[str, str]:
  """Returns the columns that are measured in all runs."""
  return {
      'best (%)': _accuracy_of(group, 'best'),
      'final (%)': _accuracy_of(group, 'final'),
      'seeds': str(len(group.runs)),
      'epsilon, paper\'s accounting': _text(group.mean('epsilon_paper')),
      'epsilon, valid': _text(group.mean('epsilon')),
      'uplink (MB)': _text(group.mean('uplink_megabytes')),
  }


def _other_runs(groups: Sequence[results.Group]) -> list[Table]:
  """Returns the runs without a counterpart in the paper and the incomplete ones, best first."""
  others = [
      group for group in groups
      if group.complete is None or not any(_reproduces(group, row) for row in paper_tables.rows())
  ]
  if not others:
    return []
  tasks = [group.config['task'] for group in groups]
  others.sort(key=lambda group: (
      tasks.index(group.config['task']), -(group.complete or group).mean('final')
  ))
  settings = [_own_settings(group) for group in others]
  shared = [flag for flag in settings[0] if all(flag in own for own in settings)]
  if len(others) == 1:
    shared = []
  rows = []
  for group, own in zip(others, settings):
    run, shown = group.runs[0], group.complete or group
    unfinished = '' if group.complete else f'{run.rounds_done} of '
    rows.append({
        'task': group.config['task'],
        'algorithm': group.config['algorithm'],
        'p': f'{group.p:.3g}',
        'sigma': _text(group.noise_multiplier),
        'rounds': f'{unfinished}{run.rounds}',
        **_measured(shown),
        'final, padding masked (%)': _accuracy_of(shown, 'masked'),
        'final, padding counted (%)': _accuracy_of(shown, 'counted'),
        'with': ', '.join(flag for flag in own if flag not in shared),
    })
  note = (f'All with {", ".join(shared)}.' if shared else '') + _notes(others)
  title = 'Runs without a counterpart in the paper, and incomplete runs'
  return [Table(title, _without_padding(rows), note.strip())]


def _without_padding(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
  """Returns rows without the columns on padding that are empty."""
  empty = {name for name in rows[0] if 'padding' in name and not any(row[name] for row in rows)}
  return [{name: text for name, text in row.items() if name not in empty} for row in rows]


def _notes(groups: Iterable[results.Group]) -> str:
  """Returns sentences on seeded noise and on accuracies outside the guarantee, if there are any."""
  note = ''
  runs = [run for group in groups if group.noise_multiplier for run in group.runs]
  if seeded := sum(run.config['seed'] is not None for run in runs):
    which = 'Every private run' if seeded == len(runs) else f'{seeded} of {len(runs)} private runs'
    note += f' {which} used a seed: epsilon is what fresh noise would give.'
  if any(group.outside_guarantee for group in groups):
    note += (
        f' Accuracies with {_OUTSIDE} are exact functions of clients\' own examples, OUTSIDE'
        ' (epsilon, delta).'
    )
  return note


def _list_of_runs(groups: Sequence[results.Group]) -> Table:
  """Returns the table with a row per run."""
  rows = [
      {
          'run': run.path.name,
          'task': run.config['task'],
          'system': figures.label(group),
          'seed': str(run.config['seed']),
          'rounds': f'{run.rounds_done} of {run.config["rounds"]}',
          'accuracy (%)': f'{run.values["final"]:.2f}',
          'epsilon, valid': _text(run.values['epsilon']),
          'minutes': _text(run.seconds and run.seconds / 60, '{:.0f}'),
      }
      for group in groups for run in group.runs
  ]
  return Table('The runs', rows)


def _reproduces(group: results.Group, row: paper_tables.Row) -> bool:
  """Whether runs are meant to reproduce a row: as long, and measured on the test set."""
  config = group.config
  if config['flags'].get('validation_examples') or group.runs[0].rounds < _identity(row)['rounds']:
    return False
  return row.is_of(config['task'], config['algorithm'], group.p, group.noise_multiplier)


@functools.cache
def _identity(row: paper_tables.Row) -> dict[str, Any]:
  """Returns the `flags` in the config.json of a run that reproduces a row exactly."""
  return grids.Cell.of(paper_tables.flags_of(row)).identity


def _differences(group: results.Group, row: paper_tables.Row) -> str:
  """Returns the flags in which a group's runs differ from the paper's."""
  paper, rounds, sigma = _identity(row), group.runs[0].rounds, group.noise_multiplier
  parts = []
  if rounds != paper['rounds']:
    parts.append(f'{rounds} rounds, not {paper["rounds"]:,}')
  if row.noise_multiplier and abs(sigma / row.noise_multiplier - 1) > 0.005:
    parts.append(f'sigma = {sigma:.3g}')
  return ', '.join(parts + _differing(group, paper))


def _own_settings(group: results.Group) -> list[str]:
  """Returns the flags of a group's runs that are not the defaults of its task and algorithm."""
  names = ('task', 'algorithm')
  defaults, *_ = settings_lib.parse([f'--{name}={group.config[name]}' for name in names])
  return _differing(group, settings_lib.identity(defaults))


def _differing(group: results.Group, identity: dict[str, Any]) -> list[str]:
  """Returns 'FLAG = VALUE' for each compared flag in which runs differ from others."""
  flags = group.config['flags']
  return [
      f'{name} = {results.text(flags.get(name))}' for name, value in identity.items()
      if name not in results.NOT_COMPARED and flags.get(name) != value
  ]


def _accuracy_of(group: results.Group, name: str) -> str:
  """Returns mean and standard deviation of an accuracy, marked if outside the guarantee."""
  text = _accuracy(*group.mean_and_std(name))
  return f'{text} {_OUTSIDE}' if text and group.outside_guarantee else text


def _accuracy(mean: float, std: Optional[float]) -> str:
  return _text(mean, '{:.2f}') + _text(std, ' ± {:.2f}')


def _text(value: Optional[float], form: str = '{:.3g}') -> str:
  """Returns a number as text; '' for None and NaN."""
  return '' if value is None or math.isnan(value) else form.format(value)


_ABOUT = (
    'Best: the highest test accuracy over rounds, as in the paper, of measurements on all test'
    ' examples. Final: after the last round. Mean ± standard deviation over seeds. "epsilon,'
    ' valid": by an accountant that is sound for the sampling of the run. "Paper\'s accounting":'
    ' Rényi DP of Poisson sampling, whatever the run did. Losses are of the test set, where the'
    ' paper\'s Figure 3 has training losses.'
)


def markdown(tables: Sequence[Table], drawn: Sequence[drawing.Figure]) -> str:
  """Renders tables and figures as Markdown, without the cells that were not run."""
  parts = ['# Results beside the paper\'s', _ABOUT]
  for figure in drawn:
    parts += [f'![{figure.title}]({figure.name}.png)', *filter(None, [figure.note])]
  for table in tables:
    parts.append(f'## {table.title}')
    if rows := [list(row.values()) for row in table.rows if NOT_RUN not in row.values()]:
      lines = [list(table.rows[0]), ['---'] * len(rows[0]), *rows]
      parts.append('\n'.join(f'| {" | ".join(line)} |' for line in lines))
    if table.note:
      parts.append(table.note)
  return '\n\n'.join(parts) + '\n'
