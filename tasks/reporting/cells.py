"""Tables of text, and the cells that several of them have."""

from collections.abc import Sequence
import dataclasses
import math
from typing import Optional

from fedsmp_tff import errors
from tasks.reporting import results

# Marks an accuracy that no epsilon covers.
OUTSIDE = '†'


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


def number(value: Optional[float], form: str = '{:.3g}') -> str:
  """Returns a number as text; '' for None and NaN."""
  return '' if value is None or math.isnan(value) else form.format(value)


def accuracy(mean: float, std: Optional[float]) -> str:
  """Returns an accuracy in percent as text, with its standard deviation if there is one."""
  return number(mean, '{:.2f}') + number(std, ' ± {:.2f}')


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
      'final, padding masked (%)': accuracy_of(group, 'masked'),
      'seeds': str(len(group.runs)),
      'epsilon, paper\'s accounting': number(group.mean('epsilon_paper')),
      'epsilon, sound accountant': number(group.mean('epsilon')),
      'uplink (MB)': number(group.mean('uplink_megabytes')),
  }
