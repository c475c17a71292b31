"""Tests of the order of clients through workers, and that each is counted once."""

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import runtime
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


def _product(dtype):
  """The work of a client: its number times the broadcast one; integers are added."""
  with tf.Graph().as_default() as graph:
    one, other = (tf.compat.v1.placeholder(dtype, [], name) for name in 'ab')
    with tf.control_dependencies([tf.debugging.assert_non_negative(one, 'negative')]):
      product = tf.multiply(one, other)
  graph = graphs.Graph(
      graph.as_graph_def().SerializeToString(), ('a:0', 'b:0'), (product.name,)
  )
  sums = [batches.IntegerSum(np.zeros([], np.int32), np.int32(10**6))] * dtype.is_integer
  return workers.Work(graph, sums)


@pytest.fixture(
    scope='module',
    params=[
        pytest.param(lambda: runtime.local_context(workers=3), id='local'),
        pytest.param(lambda: runtime.ray_context(workers=2), id='ray', marks=pytest.mark.slow),
    ],
)
def pool(request):
  with request.param() as context:
    yield context._workers


class TestExecution:

  def test_one_work_after_the_other(self, pool):
    ints, floats = _product(tf.int32), _product(tf.float32)
    for factor in (3, 5):  # The second time, workers know the works, but not what is broadcast.
      job = workers.Job(ints, [tf.constant(factor)], [[tf.constant(i)] for i in range(50)])
      results = list(pool.run(job))
      assert sorted(p for r in results for p in r.batch) == list(range(50))
      assert sum(r.values[0] for r in results) == factor * sum(range(50))
      job = workers.Job(
          floats, [tf.constant(factor / 2)], [[tf.constant(float(i))] for i in range(9)]
      )
      results = [(r.batch, r.values[0]) for r in pool.run(job)]
      assert results == [(range(i, i + 1), factor / 2 * i) for i in range(9)]

  def test_an_error_names_the_client(self, pool):
    clients = [[tf.constant(float(2 - i))] for i in range(4)]
    with pytest.raises(tf.errors.InvalidArgumentError, match='negative') as raised:
      list(pool.run(workers.Job(_product(tf.float32), [tf.constant(0.5)], clients)))
    assert raised.value.__notes__ == ['(from client 3 of the round, counted from 0)']

  def test_integers_out_of_range_name_the_client_within_its_batch(self, pool):
    clients = [[tf.constant(10**6 * (i == 23) + 1)] for i in range(50)]
    job = workers.Job(_product(tf.int32), [tf.constant(1)], clients)
    with pytest.raises(ValueError, match='^Client 23 of the round gave .* from 1000001 to'):
      list(pool.run(job))

  def test_batches_shrink_towards_the_end(self):
    cohort = workers.Cohort(_job(40, ordered=False), max_batch=8)
    sizes = [last - first + 1 for first, last in _taken(cohort, 14, num_workers=2)]
    # For two workers a quarter of those that are left: 40 / 4, but at most 8; 32 / 4; 24 / 4.
    assert sizes == [8, 8, 6, 4, 3, 2, 2] + 7 * [1]
    assert cohort.take(2) is None

  def test_results_that_are_not_added_come_alone_and_in_order(self):
    cohort = workers.Cohort(_job(3), max_batch=8)
    assert _taken(cohort, 4) == [(0, 0), (1, 1), (2, 2), None]
    assert _finish(cohort, 1) == _finish(cohort, 2) == []
    assert _finish(cohort, 0) == [0, 1, 2]

  def test_a_lost_batch_comes_back_whole_and_first(self):
    cohort = workers.Cohort(_job(40, ordered=False), max_batch=8)
    first = cohort.take(), cohort.take()
    assert cohort.requeue(first[0]) == 1
    assert cohort.take() == first[0]
    assert cohort.requeue(first[0]) == 2

  def test_a_batch_that_was_done_after_all_does_not_come_back(self):
    cohort = workers.Cohort(_job(2))
    batch = cohort.take()
    _finish(cohort, 0)
    cohort.requeue(batch)
    assert _taken(cohort, 2) == [(1, 1), None]

  def test_none_gets_further_ahead_than_the_lead(self):
    cohort = workers.Cohort(_job(10), lead=3)
    assert _taken(cohort, 4) == [(0, 0), (1, 1), (2, 2), None]
    _finish(cohort, 1)
    assert cohort.take() is None
    _finish(cohort, 0)
    assert _taken(cohort, 3) == [(3, 3), (4, 4), None]

  @pytest.mark.parametrize('seed', range(40))
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
      elif event == 3 and given_up:  # It answers when nobody waits for it any more.
        finish(given_up.pop())
    assert (counted if ordered else sorted(counted)) == list(range(num))
