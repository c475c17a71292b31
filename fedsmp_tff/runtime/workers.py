"""Hands out the units of jobs, such as a round's clients, to workers, and counts each once."""

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

# How far a unit may be ahead of the first one that is not done, where results are
# used in order and so have to be kept.
_LEAD = 256
# A batch is at most this share of what one worker would get of the units that are left: so
# the last batches are of one unit, and workers end at about the same time whatever
# each unit takes (factoring; Hummel, Schonberg, Flynn 1992).
_SHARE = 2


class Work:
  """A computation of units, the same for all of them and in all rounds.

  Attributes:
    graph: From a unit's leaves and the broadcast tensors to its results.
    sums: How the last results are added, where they are; those before are not.
    ordered: Whether there are results that are not added. They are used in the order of
      units, as floats must be added where two runs are to agree.
    kind: What a unit is called in errors.
    has_resources: See `graphs.Graph`.
  """

  def __init__(
      self,
      graph: graphs.Graph,
      sums: Sequence[batches.IntegerSum] = (),
      kind: str = 'client',
  ):
    self.graph = graph
    self.sums = list(sums)
    self.ordered = len(graph.outputs) > len(self.sums)
    self.kind = kind
    self.has_resources = graph.has_resources()


@dataclasses.dataclass(frozen=True)
class Job:
  """Units of one work in one round.

  Attributes:
    work: The computation of each.
    broadcast: The tensors that the server sends to all of them.
    units: Each one's own leaves.
  """

  work: Work
  broadcast: Sequence[tf.Tensor]
  units: Sequence[Sequence[values.Leaf]]


class Batch(NamedTuple):
  """Units that one worker runs: they are lost, repeated and counted together.

  Attributes:
    job: The number of their job.
    positions: Where they are in it.
  """

  job: int
  positions: range


class Result(NamedTuple):
  """The results of a batch.

  Attributes:
    batch: The batch; of one unit, if the work has results that are not added.
    values: The results that are not added, and the sums over the batch.
  """

  batch: Batch
  values: list[np.ndarray]


class Cohort:
  """The units of a round's jobs, on their way through the workers."""

  def __init__(self, jobs: Sequence[Job], max_batch: int = 1, lead: int = _LEAD):
    """Initializes the cohort.

    Args:
      jobs: The jobs, the most urgent one first.
      max_batch: Units of a batch, at most.
      lead: How far a unit of an ordered work may be ahead of the first that is not done.
    """
    self._jobs = jobs
    self._max_batch = max_batch
    self._lead = lead
    self._left = sum(len(job.units) for job in jobs)
    # Of each job: the first unit that was never taken, the first whose result is
    # not out, and the results that wait for it.
    self._next = [0] * len(jobs)
    self._first = [0] * len(jobs)
    self._early = [{} for _ in jobs]
    self._lost = collections.deque()
    self._done = set()
    self._losses = collections.Counter()

  def __bool__(self) -> bool:
    """Whether a unit is not done."""
    return self._left > 0

  def take(self, num_workers: int = 1) -> Optional[Batch]:
    """The next batch to run, where so many workers are; None if there is none for now."""
    if self._lost:
      return self._lost.popleft()
    for number, job in enumerate(self._jobs):
      start = self._next[number]
      left = len(job.units) - start
      if not left or (job.work.ordered and start >= self._first[number] + self._lead):
        continue
      size = 1
      if not job.work.ordered:
        size = max(1, min(self._max_batch, left // (_SHARE * num_workers)))
      self._next[number] = start + size
      return Batch(number, range(start, start + size))
    return None

  def finish(self, result: Result) -> Iterator[Result]:
    """Notes that a batch is done, and yields the results that are now to be used.

    A worker that was given up may have finished its batch after all: that second
    result does not count. Those of an ordered work wait for their turn.
    """
    batch = result.batch
    if batch in self._done:
      return
    self._done.add(batch)
    self._left -= len(batch.positions)
    if not self._jobs[batch.job].work.ordered:
      yield result
      return
    early = self._early[batch.job]
    early[batch.positions.start] = result
    while self._first[batch.job] in early:
      self._first[batch.job] += 1
      yield early.pop(self._first[batch.job] - 1)

  def lose(self, batch: Batch) -> int:
    """Puts back a batch whose worker was lost; how often that has happened to it."""
    self._losses[batch] += 1
    if batch not in self._done:
      # Before all others, so that none has to wait for it longer than necessary.
      self._lost.appendleft(batch)
    return self._losses[batch]


class Workers(abc.ABC):
  """Runs the units of a round, somewhere."""

  @abc.abstractmethod
  def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
    """Runs the jobs of one round beside one another.

    Args:
      jobs: The jobs. All units of the first one are handed out before those of the next one,
        which fill the workers while the last of the first run.

    Yields:
      Results, each unit in one of them; those of an ordered work in the order of units.
    """

  @abc.abstractmethod
  def close(self) -> None:
    """Ends what this object started."""
