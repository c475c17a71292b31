"""Tests of the order of clients through workers, and that each is counted once."""

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff.runtime import batches
from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import workers


def _job(num_clients, ordered=True):
  with tf.Graph().as_default() as graph:
    tf.zeros([], tf.int32, name='x')
  sums = [] if ordered else [batches.IntegerSum(np.zeros([], np.int32), np.int32(9))]
  work = workers.Work(graphs.Graph(graph.as_graph_def().SerializeToString(), (), ('x:0',)), sums)
  assert work.ordered == ordered
  return workers.Job(work, [], [[]] * num_clients)


def _taken(cohort, num, num_workers=1):
  """What `num` calls of `take` give: (first position, last position), or None."""
  taken = [cohort.take(num_workers) for _ in range(num)]
  return [b and (b[0], b[-1]) for b in taken]


def _finish(cohort, first):
  """The clients whose results are out once this one is done."""
  results = cohort.finish(workers.Result(range(first, first + 1), []))
  return [p for r in results for p in r.batch]


class TestExecution:

  def test_batches_shrink_towards_the_end(self):
    cohort = workers.Cohort(_job(40, ordered=False), max_batch=8)
    sizes = [last - first + 1 for first, last in _taken(cohort, 14, num_workers=2)]
    # For two workers a quarter of those that are left: 40 / 4, but at most 8; 32 / 4; 24 / 4.
    assert sizes == [8, 8, 6, 4, 3, 2, 2] + 7 * [1]
    assert cohort.take(2) is None

  def test_a_lost_batch_comes_back_whole_and_first(self):
    cohort = workers.Cohort(_job(40, ordered=False), max_batch=8)
    first = cohort.take(), cohort.take()
    assert cohort.requeue(first[0]) == 1
    assert cohort.take() == first[0]
    assert cohort.requeue(first[0]) == 2

  def test_no_client_starts_beyond_the_lead(self):
    cohort = workers.Cohort(_job(10), lead=3)
    assert _taken(cohort, 4) == [(0, 0), (1, 1), (2, 2), None]
    _finish(cohort, 1)
    assert cohort.take() is None
    _finish(cohort, 0)
    assert _taken(cohort, 3) == [(3, 3), (4, 4), None]

  @pytest.mark.parametrize('seed', range(20))
  def test_any_order_of_events_counts_each_client_once(self, seed):
    rng = np.random.default_rng(seed)
    num, ordered = int(rng.integers(0, 60)), bool(seed % 2)
    cohort = workers.Cohort(
        _job(num, ordered), max_batch=int(rng.integers(1, 8)), lead=int(rng.integers(1, 8))
    )
    running, given_up, counted = [], [], []

    def finish(batch):
      for result in cohort.finish(workers.Result(batch, [])):
        counted.extend(result.batch)

    while cohort:
      event = rng.choice(4)
      if event == 0 and (batch := cohort.take(int(rng.integers(1, 4)))) is not None:
        running.append(batch)
      elif event == 1 and running:
        finish(running.pop(rng.integers(len(running))))
      elif event == 2 and running:
        given_up.append(running.pop(rng.integers(len(running))))
        cohort.requeue(given_up[-1])
      elif event == 3 and given_up:  # It answers after the cohort gave it up.
        finish(given_up.pop())
    assert (counted if ordered else sorted(counted)) == list(range(num))
