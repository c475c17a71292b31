"""When a run measures accuracy, of which weights, and on how many examples.

What the flags leave open follows from a count of work, not from a clock: two runs of one seed
measure in the same rounds on any machine, and so does a run that resumes.
"""

import dataclasses
import math
from typing import Optional

import numpy as np

from tasks.config import settings as settings_lib
from tasks.datasets import task as task_lib

# The share of the clients' training that measurements may take. The server's training, on public
# examples, is not counted, which makes their share of a run with top-k smaller still.
BUDGET = 0.05
# Of the budget, the share that is left to measurements before the end in any case.
_BEFORE_END = 0.25
# Measurements before the end, unless each is on all test examples.
_POINTS = 40
# What a step does with an example takes as long as so many forward passes of a measurement: three
# by arithmetic, and a step's batches are small. Medians of five rounds: 6.8 times as much processor
# time on Shakespeare, 4.5 times on Fashion-MNIST.
_PASSES_OF_STEP = 4
# On fewer labels a point is imprecise: a standard error of 1.6 % where half of them are right.
_MIN_LABELS = 1000
# With --rounds_per_evaluation, one in so many measurements is of the averages, too.
_EVALUATIONS_PER_AVERAGE = 10
# The last weights and their two averages.
_SETS = 3


@dataclasses.dataclass(frozen=True)
class Cadence:
  """When a run measures accuracy, of which weights, and on how many examples.

  Attributes:
    rounds_per_evaluation: Rounds from one measurement to the next, from the initial weights on.
    eval_examples: Random test examples in each; None: all. The measurement after the last round
      is on all.
    rounds_per_average: Rounds from one measurement of the weights' averages to the next; the last
      is after the last round. None: no measurement of them.
    share: The measurements' work as a share of the clients' training; None where it would follow
      from sizes of clients' data.
  """

  rounds_per_evaluation: int
  eval_examples: Optional[int]
  rounds_per_average: Optional[int]
  share: Optional[float]


def of_run(settings: settings_lib.RunSettings, data: task_lib.TaskData) -> Cadence:
  """The cadence that the flags ask for; what they leave open keeps to `BUDGET`.

  The last weights come first, on all test examples after the last round; then points before, each
  on fewer examples as the budget falls and then fewer of them; then the weights' averages. A long
  run has 40 points, or more if each is on all test examples.

  It is a function of the settings and of numbers that are public. Sizes of clients' data are not,
  unless they are an even cut of a pool; nor is the test set's where it is the clients' own.

  Args:
    settings: The run's settings.
    data: The data.
  """
  if not settings.rounds:
    return Cadence(1, None, None, None)
  rounds, every, given = settings.rounds, settings.rounds_per_evaluation, settings.eval_examples
  fewest = math.ceil(_MIN_LABELS / labels_per_example(data))
  asked = every is not None or settings.average_decay is not None
  rounds_per_average = rounds if every is None else _EVALUATIONS_PER_AVERAGE * every
  averages_before = (_SETS - 1) * ((rounds - 1) // rounds_per_average)
  if data.test_outside_guarantee:
    # Nothing is known but the settings: points that cost little.
    num = fewest if given is None else given
    return Cadence(every or -(-rounds // _POINTS), num or None, rounds_per_average, None)

  everything = len(data.test[0])
  training = _PASSES_OF_STEP * rounds * _examples_per_round(settings, data)
  budget = BUDGET * training
  averages = asked or _SETS * everything <= (1 - _BEFORE_END) * budget
  at_end = _SETS * everything if averages else everything
  left = max(budget - at_end, _BEFORE_END * budget)

  def examples(points):
    if given is not None:
      return min(given or everything, everything)
    return min(max(int(left / (points + averages_before)), fewest), everything)

  if every is None:
    num = examples(min(_POINTS, rounds))
    points = min(max(int(left / num), 1), rounds)
    if given is None and num < everything:
      points = min(points, _POINTS)
    every = -(-rounds // points)
  points = -(-rounds // every)
  num = examples(points)
  return Cadence(
      every,
      num if num < everything else None,
      rounds_per_average if averages else None,
      ((points + averages_before) * num + at_end) / training,
  )


def labels_per_example(data: task_lib.TaskData) -> int:
  """The number of labels of an example: 1, or the length of a sequence."""
  return int(np.prod(data.test[1].shape[1:]))


def _examples_per_round(settings: settings_lib.RunSettings, data: task_lib.TaskData) -> float:
  """Examples in all steps of a round's clients, as far as public numbers foretell them."""
  if settings.local_steps is not None:
    of_client = settings.local_steps * settings.batch_size
  elif data.even:
    of_client = settings.local_epochs * float(np.mean([len(x) for x, _ in data.clients]))
  elif data.test_owners.ids:
    # People who are no clients have as many, more or less: roles of the bundled plays 58 each,
    # clients 41.
    of_client = settings.local_epochs * len(data.test[0]) / len(data.test_owners.ids)
  else:
    of_client = settings.local_epochs * settings.batch_size
  return settings.clients_per_round * of_client
