"""Hands out a round's clients to workers, and counts each once."""

import abc
import collections
from collections.abc import Iterator, Sequence
import dataclasses
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from fedsmp_tff.runtime import batches
from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import values

_LEAD = 256  # Maximum lead over the first unfinished client if results wait to be used in order.
# A batch is at most 1 / (_SHARE * number of workers) of the remaining clients: so the last batches
# have one client, and workers end at about the same time however long each client takes (factoring;
# Hummel, Schonberg, Flynn 1992).
_SHARE = 2


class Work:
  """The computation of all clients in all rounds.

  Attributes:
    graph: Maps a client's leaves and the broadcast tensors to its results.
    sums: The sums of the last results; the results before are not added.
    ordered: Whether there are results that are not added. They are used in the order of clients:
      sums of floats depend on the order.
    has_resources: See `graphs.Graph`.
  """

  def __init__(self, graph: graphs.Graph, sums: Sequence[batches.IntegerSum] = ()):
    self.graph = graph
    self.sums = list(sums)
    self.ordered = len(graph.outputs) > len(self.sums)
    self.has_resources = graph.has_resources()


@dataclasses.dataclass(frozen=True)
class Job:
  """The clients of one round."""

  work: Work
  broadcast: Sequence[tf.Tensor]  # What the server sends to all clients.
  clients: Sequence[Sequence[values.Leaf]]  # The leaves of each client.


class Result(NamedTuple):
  """The results of a batch."""

  batch: range  # Positions of its clients; a single one if the work has results that are not added.
  values: list[np.ndarray]  # The results that are not added, and the sums over the batch.


class Cohort:
  """The clients of a round in progress on the workers.

  A batch is the positions of clients that one worker runs, and that are lost or counted together.
  """

  def __init__(self, job: Job, max_batch: int = 1, lead: int = _LEAD):
    """Initializes; `max_batch` is the maximum number of clients per batch, `lead` see `_LEAD`."""
    self._ordered = job.work.ordered
    self._num_clients = self._left = len(job.clients)
    self._max_batch = max_batch
    self._lead = lead
    # The first client never taken, the first without a result, and results that wait for it.
    self._next = self._first = 0
    self._early = {}
    self._lost = collections.deque()
    self._done = set()
    self._losses = collections.Counter()

  def __bool__(self) -> bool:
    """Returns whether a client is unfinished."""
    return self._left > 0

  def take(self, num_workers: int = 1) -> Optional[range]:
    """Returns the next batch to run, by one of `num_workers`; None if there is none for now."""
    if self._lost:
      return self._lost.popleft()
    start, left = self._next, self._num_clients - self._next
    if not left or (self._ordered and start >= self._first + self._lead):
      return None
    size = 1
    if not self._ordered:
      size = max(1, min(self._max_batch, left // (_SHARE * num_workers)))
    self._next += size
    return range(start, start + size)

  def finish(self, result: Result) -> Iterator[Result]:
    """Notes that a batch is done, and yields the results that are now to be used.

    A second result of a batch does not count: a worker that was given up may still have finished.
    Results of an ordered work wait for their turn.
    """
    batch = result.batch
    if batch in self._done:
      return
    self._done.add(batch)
    self._left -= len(batch)
    if not self._ordered:
      yield result
      return
    self._early[batch.start] = result
    while self._first in self._early:
      self._first += 1
      yield self._early.pop(self._first - 1)

  def requeue(self, batch: range) -> int:
    """Puts back a batch whose worker was lost; returns how often it was lost."""
    self._losses[batch] += 1
    if batch not in self._done:
      # In front, so that no other batch waits for it longer than necessary.
      self._lost.appendleft(batch)
    return self._losses[batch]


class Workers(abc.ABC):
  """Interface: runs the clients of a round."""

  @abc.abstractmethod
  def run(self, job: Job) -> Iterator[Result]:
    """Yields results with each client once, in the order of clients for an ordered work."""

  @abc.abstractmethod
  def close(self) -> None:
    """Ends what this object started."""
