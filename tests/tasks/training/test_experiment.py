"""Tests of what an experiment refuses once it has the data."""

import numpy as np
import pytest

from tasks import errors
from tasks.cli import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.training import experiment


def _data(public_ids):
  examples = (np.zeros([3, 2]), np.zeros(3))
  return task_lib.TaskData(
      clients=[examples, examples], test=examples, public=examples, source='made up',
      client_ids=('ann', 'bob'), public_owners=task_lib.Owners('some', frozenset(public_ids)),
  )


class TestPublicExamples:

  def test_those_of_a_client_are_refused(self):
    settings, *_ = settings_lib.parse(['--task=fashion_mnist'])
    with pytest.raises(errors.InputError, match='1 clients have public examples too'):
      experiment._check_public(settings, _data({'bob', 'cid'}))
    experiment._check_public(settings, _data({'cid'}))
    experiment._check_public(settings, _data(()))
