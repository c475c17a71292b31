"""Tests of what a run hands to its participants."""

import numpy as np
import pytest

from tasks.datasets import task as task_lib
from tasks.training import train


class TestClientData:

  @pytest.mark.parametrize('tagged', [False, True])
  def test_noise_only_participants_hold_nothing(self, tagged):
    clients = [(np.ones((3, 2)), np.arange(3)), (np.zeros((1, 2)), np.arange(1))]
    data = task_lib.TaskData(clients, clients[0], None, 'made up')
    client_data = train.ClientData(data, tagged)
    ids = []
    for client, size in ((0, 3), (1, 1), (-1, 0), (-2, 0)):
      dataset = client_data(client)
      if tagged:
        ids.append(int(next(iter(dataset['client_id']))))
        dataset = dataset['examples']
      assert len(list(dataset)) == size
      assert dataset.element_spec[0].shape == [2]
    # Seeded noise derives from these: no two may be alike.
    assert ids == ([0, 1, -1, -2] if tagged else [])
    # Made once: new datasets for every round cost memory.
    assert client_data(-1) is client_data(-1)
