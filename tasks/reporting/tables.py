"""Renders runs beside the paper's tables, as tables and Markdown."""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import math
from typing import Any, Optional

from tasks import datasets
from tasks.cli import grids
from tasks.cli import paper_tables
from tasks.cli import settings as settings_lib
from tasks.reporting import drawing
from tasks.reporting import figures
from tasks.reporting import results


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of text.

  Attributes:
    title: One line.
    header: A title for each column.
    rows: Texts, as many as the header has.
    note: A sentence below; '' for none.
    not_run: Further rows, of cells that were not run: for CSV; in Markdown the note counts them.
  """

  title: str
  header: Sequence[str]
  rows: Sequence[Sequence[str]]
  note: str = ''
  not_run: Sequence[Sequence[str]] = ()


# Marks an accuracy that no epsilon covers.
_OUTSIDE = '†'
_HEADER = (
    'algorithm', 'p', 'sigma', 'paper (best, %)', 'measured: best (%)', 'difference',
    'measured: final (%)', 'seeds', 'epsilon, paper\'s table', 'epsilon, paper\'s accounting',
    'epsilon, valid', 'uplink, paper (MB)', 'uplink (MB)', 'final, padding masked (%)',
    'differs from the paper in',
)


def all_tables(groups: Sequence[results.Group]) -> list[Table]:
  """The tables of a report: those of the paper with a run, other runs, times, what was not run."""
  of_paper = _tables_of_the_paper(groups)
  return [
      *(table for table in of_paper if table.rows),
      *_other_runs(groups),
      *_list_of_runs(groups),
      *_not_run([table for table in of_paper if not table.rows]),
  ]


def _not_run(tables: Sequence[Table]) -> list[Table]:
  """Names tables of the paper that have no run."""
  text = '; '.join(f'{table.title} ({len(table.not_run)} cells)' for table in tables)
  return [Table('Not run', (), (), f'{text}.')] if tables else []


def _tables_of_the_paper(groups: Sequence[results.Group]) -> list[Table]:
  """Tables 1 to 9, our runs beside each row."""
  found = []
  for number, title in paper_tables.TITLES.items():
    of_table = [row for row in paper_tables.rows() if row.table == number]
    lines, missing, num_run = [], [], 0
    for row in of_table:
      reproducing = [g for g in groups if g.complete and _reproduces(g, row)]
      num_run += bool(reproducing)
      of_row = (row.algorithm, f'{row.p:g}', _text(row.noise_multiplier, '{:g}'))
      lines += [
          [*of_row, *_beside(row, group.complete, _differences(group, row))]
          for group in reproducing
      ]
      if not reproducing:
        missing.append([
            *of_row, _accuracy(row.accuracy, row.std), 'not run', '', '', '',
            _text(row.epsilon), '', '', _text(row.uplink_megabytes), '', '', '',
        ])
    title = f'Table {number}: {title}'
    note = f'{num_run} of {len(of_table)} cells were run.'
    if of_table[0].task == 'shakespeare':
      note += (
          ' The paper\'s accounting is for the number of clients that the paper assumes, the valid'
          ' figure for those in the data.'
      )
    of_this = [g for g in groups if any(_reproduces(g, row) for row in of_table)]
    note += _seeded_text(of_this) + _outside_text(of_this)
    if number == 7:
      note += (
          ' The paper\'s header (p = 0.05 to 0.8) does not fit its Table 2; p is as it must be'
          ' for the row of epsilon = 1.01.'
      )
    found.append(_without_padding(Table(title, _HEADER, lines, note, missing)))
  return found


def _other_runs(groups: Sequence[results.Group]) -> list[Table]:
  """Runs without a counterpart in the paper, and incomplete runs: the most accurate first."""
  others = [
      group for group in groups
      if group.complete is None or not any(_reproduces(group, row) for row in paper_tables.rows())
  ]
  if not others:
    return []
  others.sort(
      key=lambda group: (
          list(datasets.TASKS).index(group.config['task']),
          -(group.complete or group).mean_and_std('final')[0],
      )
  )
  settings = [_own_settings(group) for group in others]
  shared = [one for one in settings[0] if all(one in other for other in settings)]
  if len(others) == 1:
    shared = []
  lines = []
  for group, own in zip(others, settings):
    run = group.runs[0]
    unfinished = '' if group.complete else f'{run.rounds_done} of '
    shown = group.complete or group
    lines.append([
        group.config['task'], group.config['algorithm'], f'{group.p:.3g}',
        _text(group.noise_multiplier, '{:.3g}'), f'{unfinished}{run.rounds}', *_measured(shown),
        *(_accuracy_of(shown, name) for name in ('masked', 'counted')),
        ', '.join(one for one in own if one not in shared),
    ])
  header = (
      'task', 'algorithm', 'p', 'sigma', 'rounds', 'best (%)', 'final (%)', 'seeds',
      'epsilon, paper\'s accounting', 'epsilon, valid', 'uplink (MB)',
      'final, padding masked (%)', 'final, padding counted (%)', 'with',
  )
  note = f'All with {", ".join(shared)}.' if shared else ''
  note = (note + _seeded_text(others) + _outside_text(others)).strip()
  title = 'Runs without a counterpart in the paper, and incomplete runs'
  return [_without_padding(Table(title, header, lines, note))]


def _without_padding(table: Table) -> Table:
  """Returns a table without the columns on padding, where nothing has any."""
  kept = [
      i for i, name in enumerate(table.header)
      if 'padding' not in name or any(row[i] for row in table.rows)
  ]
  rows, not_run = (
      [[row[i] for i in kept] for row in some] for some in (table.rows, table.not_run)
  )
  header = [table.header[i] for i in kept]
  return dataclasses.replace(table, header=header, rows=rows, not_run=not_run)


def _seeded_text(groups: Iterable[results.Group]) -> str:
  """A sentence on runs whose noise whoever knows the seed can remove; '' without them."""
  runs = [run for group in groups if group.noise_multiplier for run in group.runs]
  seeded = sum(run.config['seed'] is not None for run in runs)
  if not seeded:
    return ''
  which = 'Every private run' if seeded == len(runs) else f'{seeded} of {len(runs)} private runs'
  return f' {which} used a seed: epsilon is what fresh noise would give.'


def _outside_text(groups: Iterable[results.Group]) -> str:
  """A sentence on accuracies that no epsilon covers; '' without them."""
  if not any(group.outside_guarantee for group in groups):
    return ''
  return (
      f' Accuracies with {_OUTSIDE} are exact functions of clients\' own examples, OUTSIDE'
      ' (epsilon, delta).'
  )


def _list_of_runs(groups: Sequence[results.Group]) -> list[Table]:
  """Makes the table with a row per run."""
  lines = [
      [
          run.path.name, run.config['task'], figures.label(group), str(run.config['seed']),
          f'{run.rounds_done} of {run.config["rounds"]}', f'{run.final:.2f}',
          _text(run.last('epsilon'), '{:.3g}'), _text(run.seconds and run.seconds / 60, '{:.0f}'),
      ]
      for group in groups
      for run in group.runs
  ]
  header = (
      'run', 'task', 'system', 'seed', 'rounds', 'accuracy (%)', 'epsilon, valid', 'minutes'
  )
  return [Table('The runs', header, lines)] if lines else []


def _reproduces(group: results.Group, row: paper_tables.Row) -> bool:
  config = group.config
  # A shorter run is not the paper's, and what is measured on examples held out is beside no test
  # accuracy.
  if group.runs[0].rounds < _identity(row)['rounds']:
    return False
  return not config['flags'].get('validation_examples') and row.is_of(
      config['task'], config['algorithm'], group.p, group.noise_multiplier
  )


def _beside(row: paper_tables.Row, group: results.Group, differences: str) -> list[str]:
  """Our columns beside a row of the paper."""
  best, final, seeds, epsilon_paper, epsilon, uplink = _measured(group)
  # The paper's is the best over rounds.
  name = 'final' if group.runs[0].sampled else 'best'
  difference = group.mean_and_std(name)[0] - row.accuracy
  return [
      _accuracy(row.accuracy, row.std), best, f'{difference:+.2f}', final, seeds,
      _text(row.epsilon), epsilon_paper, epsilon, _text(row.uplink_megabytes), uplink,
      _accuracy_of(group, 'masked'), differences,
  ]


def _measured(group: results.Group) -> list[str]:
  """Best and final accuracy, seeds, epsilon in two accountings, uplink."""
  return [
      _accuracy_of(group, 'best'),
      _accuracy_of(group, 'final'),
      str(len(group.runs)),
      _text(group.last('epsilon_paper'), '{:.3g}'),
      _text(group.last('epsilon'), '{:.3g}'),
      _text(group.last('uplink_megabytes'), '{:.3g}'),
  ]


@functools.cache
def _identity(row: paper_tables.Row) -> dict[str, Any]:
  """What the run that reproduces a row has as `flags` in its config.json."""
  return grids.Cell.of(paper_tables.flags_of(row)).identity


def _differences(group: results.Group, row: paper_tables.Row) -> str:
  """In which flags a group's runs differ from the paper's."""
  paper, measured = _identity(row), group.config['flags']
  parts = []
  if group.runs[0].rounds != paper['rounds']:
    parts.append(f'{group.runs[0].rounds} rounds, not {paper["rounds"]:,}')
  if (
      row.noise_multiplier is not None
      and abs(group.noise_multiplier / row.noise_multiplier - 1) > 0.005
  ):
    parts.append(f'sigma = {group.noise_multiplier:.3g}')
  parts += [
      f'{name} = {results.text(measured.get(name))}'
      for name, value in paper.items()
      if name not in results.NOT_COMPARED and measured.get(name) != value
  ]
  return ', '.join(parts)


def _own_settings(group: results.Group) -> list[str]:
  """The flags of a run that are not the task's own, with their values."""
  config = group.config
  defaults, *_ = settings_lib.parse(
      [f'--task={config["task"]}', f'--algorithm={config["algorithm"]}']
  )
  return [
      f'{name} = {results.text(config["flags"].get(name))}'
      for name, value in settings_lib.identity(defaults).items()
      if name not in results.NOT_COMPARED and config['flags'].get(name) != value
  ]


def _accuracy_of(group: results.Group, name: str) -> str:
  """Mean and standard deviation of an accuracy, with its mark."""
  text = _accuracy(*group.mean_and_std(name))
  return f'{text} {_OUTSIDE}' if text and group.outside_guarantee else text


def _accuracy(mean: float, std: Optional[float]) -> str:
  if math.isnan(mean):
    return ''
  return f'{mean:.2f}' + (f' ± {std:.2f}' if std is not None else '')


def _text(value: Optional[float], form: str = '{}') -> str:
  return '' if value is None else form.format(value)


_ABOUT = (
    'Best: the highest test accuracy over rounds, as in the paper, of measurements on all test'
    ' examples. Final: after the last round. Mean ± standard deviation over seeds. "epsilon, valid":'
    ' by an accountant that is sound for the sampling of the run. "Paper\'s accounting": Renyi DP of'
    ' Poisson sampling, whatever the run did. Losses are of the test set, where the paper\'s Figure 3'
    ' has those of training.'
)


def markdown(tables: Sequence[Table], drawn: Sequence[drawing.Figure]) -> str:
  """Renders tables and figures as Markdown."""
  parts = ['# Results beside the paper\'s', _ABOUT]
  for figure in drawn:
    parts += [f'![{figure.title}]({figure.name}.png)', *filter(None, [figure.note])]
  for table in tables:
    parts.append(f'## {table.title}')
    if table.rows:
      lines = [table.header, ['---'] * len(table.header), *table.rows]
      parts.append('\n'.join(f'| {" | ".join(line)} |' for line in lines))
    if table.note:
      parts.append(table.note)
  return '\n\n'.join(parts) + '\n'
