"""The paper's tables as data, and the runs that reproduce their rows.

`python -m tasks.paper` writes the flag files in tasks/experiments/paper anew, one a row.
"""

import csv
import dataclasses
import functools
import math
import pathlib
import sys
from typing import Optional

from tasks.config import grids

_DIRECTORY = pathlib.Path(__file__).parents[1] / 'experiments' / 'paper'
_GRID = 'paper/{}'
# What each table is about.
TITLES = {
    1: 'Fashion-MNIST',
    2: 'SVHN',
    3: 'Shakespeare',
    4: 'Fashion-MNIST, rand-k, over epsilon',
    5: 'Fashion-MNIST, top-k, over epsilon',
    6: 'SVHN, rand-k, over epsilon',
    7: 'SVHN, top-k, over epsilon',
    8: 'Shakespeare, rand-k, over epsilon',
    9: 'Shakespeare, top-k, over epsilon',
}
# k is rounded, and the paper prints sigma = 0.3 for 0.316; levels are further apart.
_SAME_P, _SAME_SIGMA = 0.02, 0.06


@dataclasses.dataclass(frozen=True)
class Row:
  """One measured accuracy of the paper.

  Attributes:
    table: Its number.
    task: As `--task`.
    algorithm: As `--algorithm`.
    p: The compression ratio; in Table 7 not as printed, see `p_printed`.
    p_printed: What the paper prints; for Table 7, top-k on SVHN, its header does not fit
      Table 2, whose rows are those of epsilon = 1.01.
    noise_multiplier: sigma; None without privacy. Those of Shakespeare are what the
      paper's accounting has for its epsilon.
    epsilon: As printed; None without privacy.
    accuracy: Test accuracy, best over rounds, mean of 5 seeds, percent.
    std: Its standard deviation over seeds, percent; None where not printed.
    uplink_megabytes: A client over the run, on average; None where not printed.
  """

  table: int
  task: str
  algorithm: str
  p: float
  p_printed: float
  noise_multiplier: Optional[float]
  epsilon: Optional[float]
  accuracy: float
  std: Optional[float]
  uplink_megabytes: Optional[float]

  def is_of(self, task: str, algorithm: str, p: float, sigma: Optional[float]) -> bool:
    """Whether a run with these is meant to reproduce this row."""
    if (task, algorithm) != (self.task, self.algorithm):
      return False
    return is_same_ratio(p, self.p) and is_same_sigma(sigma, self.noise_multiplier)


def is_same_ratio(p: float, other: float) -> bool:
  """Whether two compression ratios are meant to be one."""
  return math.isclose(p, other, rel_tol=_SAME_P)


def is_same_sigma(sigma: Optional[float], other: Optional[float]) -> bool:
  """Whether two noise multipliers are meant to be one; None is no noise."""
  if sigma is None or other is None:
    return sigma == other
  return math.isclose(sigma, other, rel_tol=_SAME_SIGMA)


@functools.cache
def rows() -> tuple[Row, ...]:
  """All rows of Tables 1 to 9."""
  with open(_DIRECTORY / 'tables.csv', encoding='utf-8', newline='') as file:
    return tuple(
        Row(
            table=int(row['table']),
            task=row['task'],
            algorithm=row['algorithm'],
            p=float(row['p']),
            p_printed=float(row['p_printed']),
            noise_multiplier=_optional(row['noise_multiplier']),
            epsilon=_optional(row['epsilon']),
            accuracy=float(row['accuracy_percent']),
            std=_optional(row['accuracy_percent_std']),
            uplink_megabytes=_optional(row['uplink_megabytes']),
        )
        for row in csv.DictReader(file)
    )


@functools.cache
def cell(row: Row) -> grids.Cell:
  """The run of the paper's grid that reproduces a row."""
  return next(
      found for found, settings in _settings(row.task)
      if row.is_of(
          row.task, settings.algorithm, settings.p or 1.0,
          settings.noise_multiplier if settings.clip is not None else None,
      )
  )


@functools.cache
def _settings(task: str) -> list:
  return [
      (one, one.settings)
      for paragraph in grids.read(_GRID.format(task))
      for one in paragraph
  ]


def flag_files() -> dict[pathlib.Path, str]:
  """Path and text of each row's flag file."""
  found = {}
  for row in rows():
    name = row.algorithm
    if row.p < 1:
      name += f'_p{row.p:g}'
    if row.noise_multiplier is not None:
      name += f'_sigma{row.noise_multiplier:g}'
    path = _DIRECTORY / f'table_{row.table}' / f'{name}.flags'
    found[path] = '\n'.join(cell(row).flags) + '\n'
  return found


def _optional(text: str) -> Optional[float]:
  return float(text) if text else None


def main() -> int:
  """Writes the flag files."""
  for path, text in flag_files().items():
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding='utf-8')
  return 0


if __name__ == '__main__':
  sys.exit(main())
