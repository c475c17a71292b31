"""Tests of the server's state: what of it is sent to clients."""

import numpy as np
import pytest

from fedsmp_tff.mechanism import state as state_lib


def _choice(num_factors=0, num_guess=0):
  return state_lib.Choice(
      np.arange(3, dtype=np.int32),
      np.ones(num_factors, np.float32),
      np.ones(num_guess, np.float32),
  )


def test_clients_get_all_but_the_memory():
  state = state_lib.FedSmpState(np.int32(4), np.zeros(2, np.int64), 0.5, _choice(), {'filter': 1})
  message = state.message()
  assert message.memory == ()
  assert all(one is other for one, other in zip(message[:-1], state[:-1]))


@pytest.mark.parametrize('factors, guess', [(0, 0), (3, 0), (0, 3), (3, 3)])
def test_empty_vectors_stand_for_none(factors, guess):
  choice = _choice(factors, guess)
  assert (choice.has_factors, choice.has_guess) == (factors > 0, guess > 0)
