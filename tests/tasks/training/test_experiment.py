"""Tests of the data that an experiment refuses."""

import numpy as np
import pytest

from tasks import errors
from tasks.cli import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.training import experiment


def test_public_examples_of_a_client_are_refused():
  settings, *_ = settings_lib.parse(['--task=fashion_mnist'])
  examples = (np.zeros([3, 2]), np.zeros(3))

  def check(*public_ids):
    experiment._check_public(settings, task_lib.TaskData(
        clients=[examples, examples], test=examples, public=examples, source='made up',
        client_ids=('ann', 'bob'), public_owners=task_lib.Owners('some', frozenset(public_ids)),
    ))

  with pytest.raises(errors.InputError, match='1 clients have public examples too'):
    check('bob', 'cid')
  check('cid')
  check()
