"""The paper's tables as data, and the flags that reproduce their rows."""

import csv
import dataclasses
import functools
import math
import pathlib
from typing import Any, Optional

from tasks import methods
from tasks.training import settings as settings_lib

_DIRECTORY = pathlib.Path(__file__).parent / 'paper'
_TASKS = ('Fashion-MNIST', 'SVHN', 'Shakespeare')
TITLES = dict(enumerate((
    *_TASKS, *(f'{task}, {mask}, over epsilon' for task in _TASKS for mask in ('rand-k', 'top-k'))
), 1))
# The tables headed "Summary of results", one per task, with the sigmas of Figures 2 and 3.
SUMMARIES = (1, 2, 3)
# k is rounded, and the paper prints sigma = 0.3 for 0.316; levels are further apart.
_P_TOLERANCE, _SIGMA_TOLERANCE = 0.02, 0.06


@dataclasses.dataclass(frozen=True)
class Target:
  """What section 5 claims on the uplink that an accuracy costs, for the methods of Figure 2.

  Attributes:
    accuracy: The test accuracy to reach, percent.
    p: The compression ratio of each masked method in Figure 2, by `--algorithm`.
    savings: The uplink that each of them saves until then, percent of DP-FedAvg's.
  """

  accuracy: float
  p: dict[str, float]
  savings: dict[str, float]


_MASKED = ('fedsmp_topk', 'fedsmp_randk')
TARGETS = {
    task: Target(accuracy, dict(zip(_MASKED, ratios)), dict(zip(_MASKED, savings)))
    for task, accuracy, ratios, savings in (
        ('fashion_mnist', 72.0, (0.005, 0.4), (99.0, 70.0)),
        ('svhn', 72.0, (0.01, 0.4), (99.0, 82.0)),
        ('shakespeare', 50.0, (0.05, 0.2), (95.0, 60.0)),
    )
}


@dataclasses.dataclass(frozen=True)
class Row:
  """One measured accuracy of the paper, in the order of the columns of tables.csv.

  Attributes:
    table: Number of the table.
    task: Value of `--task`.
    algorithm: Value of `--algorithm`.
    p: The compression ratio. 0.05, 0.1 and 0.2 in the header of Table 7, top-k on SVHN, are read as
      0.005, 0.01 and 0.05: only then do its rows with epsilon = 1.01 agree with Table 2.
    noise_multiplier: sigma; None without privacy. For Shakespeare, the sigma for which the paper's
      accountant gives the printed epsilon.
    epsilon: As printed; None without privacy.
    accuracy: Test accuracy, best over rounds, mean of 5 seeds, percent.
    std: Its standard deviation over seeds, percent; None where not printed.
    uplink_megabytes: Mean uplink per client over the run; None where not printed.
  """

  table: int
  task: str
  algorithm: str
  p: float
  noise_multiplier: Optional[float]
  epsilon: Optional[float]
  accuracy: float
  std: Optional[float]
  uplink_megabytes: Optional[float]

  def is_of(self, task: str, algorithm: str, p: float, sigma: Optional[float]) -> bool:
    """Returns whether a run with these values is meant to reproduce this row."""
    return (
        (task, algorithm) == (self.task, self.algorithm)
        and math.isclose(p, self.p, rel_tol=_P_TOLERANCE)
        and is_same_sigma(sigma, self.noise_multiplier)
    )


def is_same_sigma(sigma: Optional[float], other: Optional[float]) -> bool:
  """Returns whether two noise multipliers are the same level; None is no noise."""
  if sigma is None or other is None:
    return sigma == other
  return math.isclose(sigma, other, rel_tol=_SIGMA_TOLERANCE)


@functools.cache
def rows() -> tuple[Row, ...]:
  """Returns all rows of Tables 1 to 9."""
  with open(_DIRECTORY / 'tables.csv', encoding='utf-8', newline='') as file:
    _, *lines = csv.reader(file)
  return tuple(
      Row(int(table), task, algorithm, *(float(text) if text else None for text in numbers))
      for table, task, algorithm, *numbers in lines
  )


def summaries() -> list[Row]:
  """Returns the rows of Tables 1 to 3, which have the paper's main setting of each task."""
  return [row for row in rows() if row.table in SUMMARIES]


@functools.cache
def settings_for(task: str) -> settings_lib.RunSettings:
  """Returns the settings of DP-FedAvg in a task's file of flags."""
  return settings_lib.parse(_flags(task, 'dp_fedavg'))[0]


@functools.cache
def identity(task: str, algorithm: str) -> Optional[dict[str, Any]]:
  """Returns the `flags` in the config.json of a run in the paper's setting, with any p and sigma.

  Returns:
    None if there is no such setting: for tasks that are not the paper's, and for modules, which
    are not imported.
  """
  if algorithm not in methods.NAMES or not (_DIRECTORY / f'{task}.flags').exists():
    return None
  return settings_lib.identity(settings_lib.parse(_flags(task, algorithm))[0])


def _flags(task: str, algorithm: str) -> list[str]:
  return [f'--flagfile={_DIRECTORY / task}.flags', f'--algorithm={algorithm}']
