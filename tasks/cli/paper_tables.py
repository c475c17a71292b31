"""The paper's tables as data, and the flags that reproduce their rows."""

import csv
import dataclasses
import functools
import math
import pathlib
from typing import Optional

from tasks.cli import settings as settings_lib

_DIRECTORY = pathlib.Path(__file__).parents[1] / 'experiments' / 'paper'
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


def flags_of(row: Row) -> tuple[str, ...]:
  """Makes the flags with which `tasks.run` reproduces a row."""
  flags = [f'--flagfile={_DIRECTORY / row.task}.flags', f'--algorithm={row.algorithm}']
  if row.p < 1:
    flags.append(f'--p={row.p:g}')
  if row.noise_multiplier is not None:
    flags.append(f'--noise_multiplier={row.noise_multiplier:g}')
  return tuple(flags)


@functools.cache
def settings_of(task: str) -> settings_lib.RunSettings:
  """Returns the paper's settings for a task, of DP-FedAvg; the defaults of a task not of ours."""
  path = _DIRECTORY / f'{task}.flags'
  preset = f'--flagfile={path}' if path.exists() else f'--task={task}'
  return settings_lib.parse([preset, '--algorithm=dp_fedavg'])[0]


def _optional(text: str) -> Optional[float]:
  return float(text) if text else None
