"""Tests of the server's state: what of it is sent to clients."""

import numpy as np

from fedsmp_tff.mechanism import state as state_lib


def test_clients_get_all_but_the_memory():
  state = state_lib.FedSmpState(
      np.int32(4), np.zeros(2, np.int64), 0.5, np.arange(3, dtype=np.int32), {'energies': 1}
  )
  message = state.message()
  assert message.memory == ()
  assert all(one is other for one, other in zip(message[:-1], state[:-1]))
