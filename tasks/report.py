"""`python -m tasks.report RUNS...`: tables and figures of runs next to the paper's."""

import csv
import dataclasses
import itertools
import pathlib
import sys

from tasks import datasets
from tasks import errors
from tasks import methods
from tasks.cli import command
from tasks.cli import options as options_lib
from tasks.reporting import figures as figures_lib
from tasks.reporting import kept
from tasks.reporting import results
from tasks.reporting import tables as tables_lib

_MARKDOWN, _CSV = 'report.md', 'cells.csv'


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  output: str = options_lib.option(
      'report',
      f'Directory for {_MARKDOWN}, a PNG per figure, all tables as {_CSV}, and {kept.CURVES} and'
      f' {kept.RUNS}, from which this command makes the same report again without the runs.',
      is_path=True,
  )
  task: list[str] = options_lib.option(
      [],
      'Module with a TASK of your own, as in docs/extending.md. Its runs are shown with its title'
      ' and defaults. Without this flag, a report imports no module that a run names.',
      repeated=True,
  )
  algorithm: list[str] = options_lib.option(
      [], 'Module with a METHOD of your own, in the same way as --task.', repeated=True
  )


def _main(options: Options, run_dirs: list[str]) -> None:
  if not run_dirs:
    raise errors.InputError('No run directory is named. Name one or more.')
  for find, names in ((datasets.find, options.task), (methods.find, options.algorithm)):
    for name in names:
      find(name)
  runs = kept.read_all(run_dirs)
  groups = results.group(runs)
  tables, figures = tables_lib.all_tables(groups), {}
  for _, of_task in itertools.groupby(groups, lambda group: group.config['task']):
    figures |= figures_lib.draw_task([*of_task])
  output = pathlib.Path(options.output)
  text = tables_lib.markdown(groups, tables, figures)
  with errors.writing_to('output', output):
    output.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
      figure.savefig(output / f'{name}.png')
    (output / _MARKDOWN).write_text(text, encoding='utf-8')
    kept.write(output, runs)
    with open(output / _CSV, 'w', encoding='utf-8', newline='') as file:
      writer = csv.writer(file)
      for table in tables:
        writer.writerow(['table', *table.rows[0]])
        writer.writerows([table.title, *row.values()] for row in table.rows)
  print(f'wrote {output / _MARKDOWN}, {output / _CSV}, {kept.CURVES}, {kept.RUNS} and the figures')


main = command.Command(
    'tasks.report',
    (
        'usage: python -m tasks.report RUNS... [--output=DIRECTORY]',
        '',
        'RUNS are directories of a run (--output_dir of tasks.run), of many (--sweep_dir of',
        'tasks.sweep), or reports of this command, in any mixture. A run that is there twice counts',
        'once. The report has the results of the paper next to the runs that reproduce them, with',
        'the flags that differ from the paper. It also has the uplink that runs needed to reach the',
        'accuracies that the paper names, and all other runs.',
    ),
    _main,
    (Options,),
    parse=command.parse_with_arguments,
).main


if __name__ == '__main__':
  sys.exit(main(sys.argv))
