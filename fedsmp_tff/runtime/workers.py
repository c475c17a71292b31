"""Hands out the clients of a round to workers, and counts each once."""

import abc
import collections
from collections.abc import Iterator, Sequence
import contextlib
from typing import Optional

import numpy as np
import tensorflow as tf

from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import values


class Cohort:
  """The clients 0 to `num_clients` - 1 of a round, on their way through the workers."""

  def __init__(self, num_clients: int, lead: Optional[int] = None):
    """Initializes the cohort.

    Args:
      num_clients: Clients in the round.
      lead: How far a client may be ahead of the first one that is not done, where
        results are added up in order and so have to be kept; None: any.
    """
    self._waiting = collections.deque(range(num_clients))
    self._num_clients = num_clients
    self._lead = num_clients if lead is None else lead
    self._done = set()
    self._first = 0
    self._losses = collections.Counter()

  def __bool__(self) -> bool:
    """Whether a client is not done."""
    return len(self._done) < self._num_clients

  def take(self) -> Optional[int]:
    """The next client to run; None if there is none for now."""
    if not self._waiting or self._waiting[0] >= self._first + self._lead:
      return None
    return self._waiting.popleft()

  def finish(self, client: int) -> bool:
    """Notes that a client is done; whether this is the first time.

    A worker that was given up may have finished its client after all: that second
    result must not be counted.
    """
    if client in self._done:
      return False
    self._done.add(client)
    while self._first in self._done:
      self._first += 1
    return True

  def lose(self, client: int) -> int:
    """Puts back a client whose worker was lost; how often that has happened to it."""
    self._losses[client] += 1
    if client not in self._done:
      # Before all others, so that none has to wait for it longer than necessary.
      self._waiting.appendleft(client)
    return self._losses[client]


# How many clients' results are kept, at most, to be added in order.
_LEAD = 256


class Work:
  """The computation of a client in a round, the same for all clients and rounds.

  Attributes:
    graph: From a client's leaves and the broadcast tensors to its results.
    ordered: Whether its results must be added up in the order of clients, as sums
      of floats must where two runs are to agree.
    has_resources: See `graphs.Graph`.
  """

  def __init__(self, graph: graphs.Graph, ordered: bool):
    self.graph = graph
    self.ordered = ordered
    self.has_resources = graph.has_resources()

  @property
  def lead(self) -> Optional[int]:
    """See `Cohort`."""
    return _LEAD if self.ordered else None


class Workers(abc.ABC):
  """Runs the clients of a round, somewhere."""

  @abc.abstractmethod
  def run(
      self,
      work: Work,
      broadcast: Sequence[tf.Tensor],
      clients: Sequence[Sequence[values.Leaf]],
  ) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Runs `work` for each client of one round.

    Args:
      work: The computation of each client.
      broadcast: The tensors that the server sends to all of them.
      clients: Each client's own leaves.

    Yields:
      A client's position and results, each client once, in any order.
    """

  @abc.abstractmethod
  def close(self) -> None:
    """Ends what this object started."""


@contextlib.contextmanager
def naming(client: int) -> Iterator[None]:
  """Adds to an exception's text which client of the round it comes from."""
  try:
    yield
  except Exception as error:
    error.add_note(f'(from client {client} of the round, counted from 0)')
    raise
