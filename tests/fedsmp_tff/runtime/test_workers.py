"""Tests of the order of clients through workers, and that each is counted once."""

import numpy as np
import pytest

from fedsmp_tff.runtime import workers


class TestExecution:

  def test_all_are_handed_out_once(self):
    clients = workers.Cohort(3)
    assert [clients.take() for _ in range(4)] == [0, 1, 2, None]
    assert clients
    assert all(clients.finish(c) for c in (2, 0, 1))
    assert not clients

  def test_a_second_result_does_not_count(self):
    clients = workers.Cohort(2)
    clients.take()
    assert clients.finish(0) and not clients.finish(0)
    assert clients  # The other one is still to come.

  def test_a_lost_client_comes_back_first(self):
    clients = workers.Cohort(3)
    clients.take(), clients.take()
    assert clients.lose(0) == 1
    assert clients.take() == 0
    assert clients.lose(0) == 2

  def test_a_client_that_was_done_after_all_does_not_come_back(self):
    clients = workers.Cohort(2)
    clients.take()
    clients.finish(0)
    clients.lose(0)
    assert [clients.take(), clients.take()] == [1, None]

  def test_none_gets_further_ahead_than_the_lead(self):
    clients = workers.Cohort(10, lead=3)
    assert [clients.take() for _ in range(4)] == [0, 1, 2, None]
    clients.finish(1)
    assert clients.take() is None
    clients.finish(0)
    assert [clients.take() for _ in range(3)] == [3, 4, None]

  @pytest.mark.parametrize('seed', range(20))
  def test_any_story_counts_each_client_once(self, seed):
    rng = np.random.default_rng(seed)
    num = int(rng.integers(1, 30))
    clients = workers.Cohort(num, lead=int(rng.integers(1, 8)))
    running, given_up, counted = [], [], []
    while clients:
      event = rng.choice(4)
      if event == 0 and (client := clients.take()) is not None:
        running.append(client)
      elif event == 1 and running:
        client = running.pop(rng.integers(len(running)))
        counted += [client] * clients.finish(client)
      elif event == 2 and running:
        given_up.append(running.pop(rng.integers(len(running))))
        clients.lose(given_up[-1])
      elif event == 3 and given_up:  # It answers when nobody waits for it any more.
        client = given_up.pop()
        counted += [client] * clients.finish(client)
    assert sorted(counted) == list(range(num))
