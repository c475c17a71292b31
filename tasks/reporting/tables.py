"""All tables of a report, and the report in Markdown."""

from collections.abc import Mapping, Sequence
import itertools

from matplotlib import figure as mpl_figure

from tasks import datasets
from tasks import methods
from tasks.cli import plugins
from tasks.reporting import cells
from tasks.reporting import paper
from tasks.reporting import results
from tasks.training import settings as settings_lib

_RUNS = 'List of runs'
_VALIDATED = (
    'Accuracies of runs with `validation_examples` are on the validation set, not on the test set.'
)
_SIMULATED = (
    'A private run with a seed is simulated: anyone who knows the seed can remove its noise. It has no'
    ' guarantee, and its epsilon is what fresh noise would give.'
)
_OUTSIDE = (
    f'Accuracies with {cells.OUTSIDE} are exact functions of clients\' own examples, OUTSIDE (epsilon,'
    ' delta): no epsilon in this report covers them.'
)


def all_tables(groups: Sequence[results.Group]) -> list[cells.Table]:
  """Returns a report's tables with a row: the paper's, other runs, and a list of all runs."""
  of_paper = [table for table in paper.tables(groups) if table.rows]
  title = f'{"Other c" if _has_paper_rows(of_paper) else "C"}onfigurations, best first'
  tables = [*of_paper, _configurations(title, groups), _list_of_runs(groups)]
  return [cells.without_empty_columns(table) for table in tables if table.rows]


def _has_paper_rows(tables: Sequence[cells.Table]) -> bool:
  return any(table.title.startswith('Table ') for table in tables)


def _configurations(title: str, groups: Sequence[results.Group]) -> cells.Table:
  """Returns the runs that reproduce no row of the paper, which incomplete ones never do."""
  others = [group for group in groups if not paper.has_row_for(group)]
  tasks = [group.config['task'] for group in groups]
  others.sort(key=lambda group: (tasks.index(group.config['task']), -group.mean('final')))
  rows = [
      {
          'task': group.config['task'],
          'algorithm': group.config['algorithm'],
          'p': f'{group.p:.3g}',
          'sigma': cells.number(group.noise_multiplier),
          'rounds': _rounds(group),
          **cells.measured(group),
          'with': ', '.join(_own_settings(group)),
      }
      for group in others
  ]
  return cells.Table(title, rows)


def _list_of_runs(groups: Sequence[results.Group]) -> cells.Table:
  """Returns the table with a row per run."""
  rows = [
      {
          'run': run.name,
          'task': run.config['task'],
          'method': group.label,
          'seed': str(run.config['seed']),
          'rounds': _rounds(group),
          'accuracy (%)': cells.mark(f'{run.values["final"]:.2f}', group),
          'epsilon, sound accountant': cells.number(run.values['epsilon']),
          'minutes': f'{run.seconds / 60:.1f}',
      }
      for group in groups for run in group.runs
  ]
  return cells.Table(_RUNS, rows)


def _rounds(group: results.Group) -> str:
  length = group.config['rounds']
  return str(length) if group.complete else f'{group.rounds_done} of {length}'


def _own_settings(group: results.Group) -> list[str]:
  """Returns the flags of a group's runs that are not the defaults of its task and algorithm.

  The defaults of modules that no flag of this command named are unknown, and so all are returned.
  """
  task, algorithm = group.config['task'], group.config['algorithm']
  if task not in datasets.TASKS or algorithm not in methods.METHODS:
    return group.differences(dict.fromkeys(group.config['flags']), (*results.NOT_COMPARED, 'task'))
  settings, *_ = settings_lib.parse([f'--task={task}', f'--algorithm={algorithm}'])
  return group.differences(settings_lib.identity(settings))


def markdown(
    groups: Sequence[results.Group], tables: Sequence[cells.Table],
    figures: Mapping[str, mpl_figure.Figure],
) -> str:
  """Returns the report of groups in Markdown.

  Args:
    groups: The runs.
    tables: Their tables, from `all_tables`.
    figures: Their figures, by the names of their files without suffix.
  """
  title = f'# Results{" compared with the paper" * _has_paper_rows(tables)}'
  parts = [title, *_opening(groups)]
  parts += [_section(table) for table in tables if table.title != _RUNS]
  if figures:
    parts.append('## Figures')
  parts += [f'![{figure.get_suptitle()}]({name}.png)' for name, figure in figures.items()]
  parts += ['## What the columns mean', '\n'.join(f'- {text}' for text in cells.meanings(tables))]
  parts += [_section(table) for table in tables if table.title == _RUNS]
  return '\n\n'.join(parts) + '\n'


def _opening(groups: Sequence[results.Group]) -> list[str]:
  """Returns paragraphs on what was run, and on what no guarantee covers."""
  paragraphs = []
  for task, of_task in itertools.groupby(groups, lambda group: group.config['task']):
    members = [*of_task]
    runs = [run for group in members for run in group.runs]
    num_complete = sum(len(group.runs) for group in members if group.complete)
    algorithms = dict.fromkeys(group.config['algorithm'] for group in members)
    titles = [plugins.title(name, methods.METHODS) for name in algorithms]
    paragraphs.append(
        f'This report shows {len(runs)} run{"s" * (len(runs) > 1)} on'
        f' {plugins.title(task, datasets.TASKS)} (`{task}`) {_seeds(runs)}.'
        f' The method{"s are" if len(titles) > 1 else " is"} {_enumerate(titles)}. '
        + (
            'Every run is complete.' if num_complete == len(runs)
            else f'Only {num_complete} of {len(runs)} have done all their rounds.'
        )
    )
  is_seeded = (run.config['seed'] is not None for g in groups if g.noise_multiplier for run in g.runs)
  for text, applies in (
      (_VALIDATED, any(group.uses_validation_set for group in groups)),
      (_SIMULATED, any(is_seeded)),
      (_OUTSIDE, any(group.outside_guarantee for group in groups)),
  ):
    paragraphs += [text] * applies
  return paragraphs


def _seeds(runs: Sequence[results.Run]) -> str:
  """Returns 'with seeds 1 to 5', or the like."""
  values = {run.config['seed'] for run in runs}
  seeds = sorted(values - {None})
  if not seeds:
    return 'without a seed'
  texts = [*map(str, seeds)]
  if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
    texts = [f'{seeds[0]} to {seeds[-1]}']
  return f'with seed{"s" * (len(seeds) > 1)} {_enumerate(texts)}{" or none" * (None in values)}'


def _enumerate(texts: Sequence[str]) -> str:
  *first, last = texts
  return f'{", ".join(first)} and {last}' if first else last


def _section(table: cells.Table) -> str:
  lines = [list(table.rows[0]), ['---'] * len(table.rows[0])]
  lines += [list(row.values()) for row in table.rows]
  rows = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
  return '\n\n'.join(filter(None, (f'## {table.title}', rows, table.note)))
