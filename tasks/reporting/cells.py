"""Tables of text, and the cells that several of them have."""

from collections.abc import Sequence
import dataclasses
import math
from typing import Optional

from fedsmp_tff import errors
from tasks.reporting import results

# Marks an accuracy that no epsilon covers.
OUTSIDE = '†'
_SPREAD = '±'

# In the order of the columns.
_MEANINGS = {
    'p': '**p** is the fraction of the parameters that clients send.',
    'sigma': '**sigma** is the noise multiplier.',
    'paper (best, %)': 'The columns with **paper** in their names have the paper\'s numbers.',
    'best (%)': (
        '**best (%)** is the highest test accuracy over the evaluated rounds. The paper takes it over'
        ' all rounds. It is empty where rounds were evaluated on a sample, whose noise would raise it.'
    ),
    'final (%)': (
        '**final (%)**, which the list of runs calls **accuracy (%)**, is the test accuracy after the'
        ' last round.'
    ),
    'gain (points)': (
        '**gain (points)** is the final accuracy minus that of the same run\'s initial weights.'
    ),
    'final, padding masked (%)': (
        '**final, padding masked (%)** is the final accuracy without the padding among the labels.'
    ),
    _SPREAD: f'**{_SPREAD}** is one standard deviation over seeds. Other numbers are means over seeds.',
    'epsilon, paper\'s accounting': (
        '**epsilon, paper\'s accounting** is from the RDP accountant of the paper. It assumes Poisson'
        ' sampling, whatever the sampling of the run, so it can be too small.'
    ),
    'epsilon, sound accountant': (
        '**epsilon, sound accountant** is an upper bound for the sampling of the run.'
    ),
    'uplink (MB)': (
        '**uplink (MB)** is what a client uploads over the whole run, as a mean over all clients.'
    ),
    'difference': '**difference** is our accuracy minus the paper\'s, in points.',
    'with': (
        '**with** lists the flags that are not the defaults of the task and the method, and all flags of'
        ' a module that the report was not told to import.'
    ),
    'minutes': '**minutes** is the time of the rounds with their evaluations.',
}


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of text; rows map columns, the same in all rows, to texts."""

  title: str
  rows: Sequence[dict[str, str]]
  note: str = ''


def without_empty_columns(table: Table) -> Table:
  """Returns a table of one row or more without its empty columns, and without control characters."""
  columns = [name for name in table.rows[0] if any(row[name] for row in table.rows)]
  # Runs, which have names and flags, may be somebody else's.
  rows = [{name: errors.printable(row[name]) for name in columns} for row in table.rows]
  return dataclasses.replace(table, rows=rows)


def meanings(tables: Sequence[Table]) -> list[str]:
  """Returns what the columns of tables mean, and the spread if they have one."""
  rows = [row for table in tables for row in table.rows]
  names = {name for row in rows for name in row}
  if any(_SPREAD in text for row in rows for text in row.values()):
    names.add(_SPREAD)
  return [text for name, text in _MEANINGS.items() if name in names]


def number(value: Optional[float], form: str = '{:.3g}') -> str:
  """Returns a number as text; '' for None and NaN."""
  return '' if value is None or math.isnan(value) else form.format(value)


def accuracy(mean: float, std: Optional[float], form: str = '{:.2f}') -> str:
  """Returns an accuracy in percent as text, with its standard deviation if there is one."""
  return number(mean, form) + number(std, f' {_SPREAD} {{:.2f}}')


def mark(text: str, group: results.Group) -> str:
  """Returns a text that tells of a group's accuracy, marked if that is outside the guarantee."""
  return f'{text} {OUTSIDE}' if text and group.outside_guarantee else text


def accuracy_of(group: results.Group, name: str) -> str:
  """Returns mean and standard deviation of an accuracy, marked if outside the guarantee."""
  return mark(accuracy(*group.mean_and_std(name)), group)


def measured(group: results.Group) -> dict[str, str]:
  """Returns the columns of measurements."""
  return {
      'best (%)': accuracy_of(group, 'best'),
      'final (%)': accuracy_of(group, 'final'),
      'gain (points)': mark(accuracy(*group.mean_and_std('gain'), '{:+.2f}'), group),
      'final, padding masked (%)': accuracy_of(group, 'masked'),
      'seeds': str(len(group.runs)),
      'epsilon, paper\'s accounting': number(group.mean('epsilon_paper')),
      'epsilon, sound accountant': number(group.mean('epsilon')),
      'uplink (MB)': number(group.mean('uplink_megabytes')),
  }
