"""The model of `tiny_task` on images of twelve people, of whom some are set aside."""

import dataclasses

import numpy as np

from tasks.cli import options
from tasks.datasets import people
from tests.support import tiny_task

SIZE = 12  # Number of images in both parts of person 0, a client.


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this task."""

  per_client: bool = options.option(False, 'Whether the test set is a part of each client\'s own.')


def _load(own, split):
  members = {}
  for number in range(12):
    rng, num = np.random.default_rng(number), 12 if number else SIZE
    part = rng.integers(0, 256, [num, 28, 28, 1], np.uint8), rng.integers(0, 10, num, np.int32)
    members[f'person {number}'] = [people.Person(f'person {number}', part, part)]
  groups = people.Groups(members, test=['person 11'], spare=['person 10'], noun='people')
  return people.divide(groups, own.per_client, 'made up', split)


TASK = dataclasses.replace(
    tiny_task.TASK, name='made_up', load=_load, options=Options
)
