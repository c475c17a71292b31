"""All tables of a report, and the report in Markdown."""

from collections.abc import Mapping, Sequence

from matplotlib import figure as mpl_figure

from tasks import datasets
from tasks import methods
from tasks.reporting import cells
from tasks.reporting import paper
from tasks.reporting import results
from tasks.training import settings as settings_lib

_ABOUT = (
    'Best: maximum test accuracy over the evaluated rounds (the paper: over all rounds), if'
    ' evaluations use all test examples. Final: test accuracy after the last round. Gain: final'
    ' accuracy minus that of the initial weights, within each run. Mean ± standard deviation over'
    ' seeds.'
    ' "epsilon, sound accountant": for the sampling of the run. "Paper\'s'
    ' accounting": RDP for Poisson sampling, whatever the sampling of the run. A private run with a'
    ' seed is simulated: its epsilon is what fresh noise would give.'
    f' Accuracies with {cells.OUTSIDE} are exact functions of clients\' own examples, OUTSIDE (epsilon,'
    ' delta). Losses are on the test set; the paper\'s Figure 3 has training losses.'
)


def all_tables(groups: Sequence[results.Group]) -> list[cells.Table]:
  """Returns a report's tables with a row: the paper's, other runs, and a list of all runs."""
  tables = [*paper.tables(groups), _other_runs(groups), _list_of_runs(groups)]
  return [cells.without_empty_columns(table) for table in tables if table.rows]


def _other_runs(groups: Sequence[results.Group]) -> cells.Table:
  """Returns the runs without a counterpart in the paper and the incomplete ones, best first."""
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
  return cells.Table('Runs without a counterpart in the paper, and incomplete runs', rows)


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
  return cells.Table('List of runs', rows)


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


def markdown(tables: Sequence[cells.Table], figures: Mapping[str, mpl_figure.Figure]) -> str:
  """Returns tables, and figures by the names of their files without suffix, as Markdown."""
  has_paper_rows = any(table.title.startswith('Table ') for table in tables)
  parts = [f'# Results{" compared with the paper" * has_paper_rows}', _ABOUT]
  parts += [f'![{figure.get_suptitle()}]({name}.png)' for name, figure in figures.items()]
  for table in tables:
    lines = [list(table.rows[0]), ['---'] * len(table.rows[0])]
    lines += [list(row.values()) for row in table.rows]
    parts.append(f'## {table.title}')
    parts.append('\n'.join(f'| {" | ".join(line)} |' for line in lines))
    if table.note:
      parts.append(table.note)
  return '\n\n'.join(parts) + '\n'
