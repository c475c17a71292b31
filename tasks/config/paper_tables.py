"""The paper's tables as data, and the flags that reproduce their rows."""

import csv
import dataclasses
import functools
import math
import pathlib
from typing import Optional

from tasks import datasets
from tasks import errors

_FILE = pathlib.Path(__file__).parents[1] / 'experiments' / 'paper' / 'tables.csv'
# Algorithm 1 samples a fixed number of clients, and the paper's code was PyTorch.
# The paper's accuracies are the best over rounds, on all test examples.
_AS_THE_PAPER = ('--sampling=fixed', '--initializer=torch', '--eval_examples=0')
# Speeches padded to sequences of 80 characters, and the padding counted: a model that always predicts
# 'space' then has 36.1 %, and the paper's worst cell is 36.41 % +- 0.15.
_SHAKESPEARE = (
    '--shakespeare_test=per_client', '--shakespeare_snippets=speech',
    '--shakespeare_padding=counted',
)
# From this table on, rows differ in epsilon too.
_FIRST_OVER_EPSILON = 4
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

  @property
  def name(self) -> str:
    """The name of the row in `--row`, like table_1/fedsmp_topk/0.005 or table_4/fedsmp_randk/0.4/2.02.

    That is the table, the algorithm, `p` unless it is 1, and, in tables over epsilon, `epsilon`.
    """
    parts = [f'table_{self.table}', self.algorithm]
    if self.p < 1:
      parts.append(f'{self.p:g}')
    if self.table >= _FIRST_OVER_EPSILON:
      parts.append(f'{self.epsilon:g}')
    return '/'.join(parts)

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
  with open(_FILE, encoding='utf-8', newline='') as file:
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


def named(name: str) -> Row:
  """Finds a row by its name.

  Args:
    name: As `Row.name`.

  Raises:
    InputError: If no row has this name.
  """
  names = {row.name: row for row in rows()}
  if name not in names:
    table = name.partition('/')[0]
    known = [known for known in names if known.startswith(f'{table}/')]
    raise errors.InputError(
        f'--row={name} is not a row of the paper\'s tables; choose one of'
        f' {", ".join(known or (f"table_{number}/..." for number in TITLES))}.'
    )
  return names[name]


def flags_of(row: Row) -> tuple[str, ...]:
  """Makes the flags with which `tasks.run` reproduces a row.

  What the task has as its own setting is left to it, so that `--epsilon` can take the place
  of the noise multiplier.
  """
  flags = [f'--task={row.task}', *_AS_THE_PAPER, f'--algorithm={row.algorithm}']
  if row.task == 'shakespeare':
    flags += _SHAKESPEARE
  if row.p < 1:
    flags.append(f'--p={row.p:g}')
  if row.algorithm.endswith('topk'):
    flags.append('--public_clients=0')
  standard = datasets.TASKS[row.task].settings
  if row.noise_multiplier not in (None, standard.noise_multiplier):
    flags.append(f'--noise_multiplier={row.noise_multiplier:g}')
  return tuple(flags)


def _optional(text: str) -> Optional[float]:
  return float(text) if text else None
