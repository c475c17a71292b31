"""Tests of the order of units through workers, and that each is counted once."""

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import runtime
from fedsmp_tff.runtime import batches
from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import workers


def _job(num_units, ordered=True):
  with tf.Graph().as_default() as graph:
    tf.zeros([], tf.int32, name='x')
  sums = [] if ordered else [batches.IntegerSum(np.zeros([], np.int32), np.int32(9))]
  work = workers.Work(graphs.Graph(graph.as_graph_def().SerializeToString(), (), ('x:0',)), sums)
  assert work.ordered == ordered
  return workers.Job(work, [], [[]] * num_units)


def _taken(cohort, num, num_workers=1):
  """What `num` calls of `take` give: (job, first position, last position), or None."""
  taken = [cohort.take(num_workers) for _ in range(num)]
  return [b and (b.job, b.positions[0], b.positions[-1]) for b in taken]


def _finish(cohort, job, first, last=None):
  """The units whose results are out once this batch is done."""
  batch = workers.Batch(job, range(first, (first if last is None else last) + 1))
  results = cohort.finish(workers.Result(batch, []))
  return [(r.batch.job, p) for r in results for p in r.batch.positions]


def _product(dtype, kind):
  """The work of a unit: its number times the broadcast one; integers are added."""
  with tf.Graph().as_default() as graph:
    one, other = (tf.compat.v1.placeholder(dtype, [], name) for name in 'ab')
    with tf.control_dependencies([tf.debugging.assert_non_negative(one, 'negative')]):
      product = tf.multiply(one, other)
  graph = graphs.Graph(
      graph.as_graph_def().SerializeToString(), ('a:0', 'b:0'), (product.name,)
  )
  sums = [batches.IntegerSum(np.zeros([], np.int32), np.int32(10**6))] * dtype.is_integer
  return workers.Work(graph, sums, kind)


@pytest.fixture(
    scope='module',
    params=[lambda: runtime.local_context(workers=3), lambda: runtime.ray_context(workers=2)],
    ids=['local', 'ray'],
)
def pool(request):
  with request.param() as context:
    yield context._workers


class TestExecution:

  @pytest.mark.parametrize('first', [0, 1])
  def test_two_jobs_beside_one_another(self, pool, first):
    ints, floats = _product(tf.int32, 'client'), _product(tf.float32, 'public client')
    jobs = [
        workers.Job(ints, [tf.constant(3)], [[tf.constant(i)] for i in range(50)]),
        workers.Job(floats, [tf.constant(0.5)], [[tf.constant(float(i))] for i in range(9)]),
    ][:: -1 if first else 1]
    for _ in range(2):  # The second time, workers know the works.
      results = list(pool.run(jobs))
      of_ints, of_floats = (
          [(r.batch.positions, r.values[0]) for r in results if r.batch.job == number]
          for number in (first, 1 - first)
      )
      assert sorted(p for positions, _ in of_ints for p in positions) == list(range(50))
      assert sum(total for _, total in of_ints) == 3 * sum(range(50))
      assert of_floats == [(range(i, i + 1), 0.5 * i) for i in range(9)]

  def test_an_error_names_the_unit_by_its_kind(self, pool):
    floats = _product(tf.float32, 'public client')
    units = [[tf.constant(float(2 - i))] for i in range(4)]
    with pytest.raises(tf.errors.InvalidArgumentError, match='negative') as raised:
      list(pool.run([workers.Job(floats, [tf.constant(0.5)], units)]))
    assert raised.value.__notes__ == ['(from public client 3 of the round, counted from 0)']

  def test_integers_out_of_range_name_the_unit_within_its_batch(self, pool):
    units = [[tf.constant(10**6 * (i == 23) + 1)] for i in range(50)]
    job = workers.Job(_product(tf.int32, 'client'), [tf.constant(1)], units)
    with pytest.raises(ValueError, match='^Client 23 of the round gave .* from 1000001 to'):
      list(pool.run([job]))

  def test_all_are_handed_out_once(self):
    cohort = workers.Cohort([_job(3, ordered=False)])
    assert _taken(cohort, 4) == [(0, 0, 0), (0, 1, 1), (0, 2, 2), None]
    assert cohort
    assert [_finish(cohort, 0, u) for u in (2, 0, 1)] == [[(0, 2)], [(0, 0)], [(0, 1)]]
    assert not cohort

  def test_the_first_job_s_units_come_first(self):
    cohort = workers.Cohort([_job(2), _job(0), _job(2, ordered=False)])
    assert _taken(cohort, 3) == [(0, 0, 0), (0, 1, 1), (2, 0, 0)]
    assert _finish(cohort, 2, 0) == [(2, 0)]
    cohort.lose(workers.Batch(0, range(1, 2)))
    assert _taken(cohort, 3) == [(0, 1, 1), (2, 1, 1), None]

  def test_batches_shrink_towards_the_end(self):
    cohort = workers.Cohort([_job(40, ordered=False)], max_batch=8)
    sizes = [last - first + 1 for _, first, last in _taken(cohort, 14, num_workers=2)]
    # For two workers a quarter of those that are left: 40 / 4, but at most 8; 32 / 4; 24 / 4.
    assert sizes == [8, 8, 6, 4, 3, 2, 2] + 7 * [1]
    assert cohort.take(2) is None

  def test_results_that_are_not_added_come_alone_and_in_order(self):
    cohort = workers.Cohort([_job(3), _job(2)], max_batch=8)
    assert _taken(cohort, 4) == [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 0)]
    assert _finish(cohort, 0, 1) == _finish(cohort, 0, 2) == []
    assert _finish(cohort, 1, 0) == [(1, 0)]
    assert _finish(cohort, 0, 0) == [(0, 0), (0, 1), (0, 2)]

  def test_a_second_result_does_not_count(self):
    cohort = workers.Cohort([_job(2)])
    cohort.take()
    assert _finish(cohort, 0, 0) == [(0, 0)] and not _finish(cohort, 0, 0)
    assert cohort  # The other one is still to come.

  def test_a_lost_batch_comes_back_whole_and_first(self):
    cohort = workers.Cohort([_job(40, ordered=False)], max_batch=8)
    first = cohort.take(), cohort.take()
    assert cohort.lose(first[0]) == 1
    assert cohort.take() == first[0]
    assert cohort.lose(first[0]) == 2

  def test_a_batch_that_was_done_after_all_does_not_come_back(self):
    cohort = workers.Cohort([_job(2)])
    batch = cohort.take()
    _finish(cohort, 0, 0)
    cohort.lose(batch)
    assert _taken(cohort, 2) == [(0, 1, 1), None]

  def test_none_gets_further_ahead_than_the_lead(self):
    cohort = workers.Cohort([_job(10), _job(1)], lead=3)
    # Meanwhile there is the next job.
    assert _taken(cohort, 5) == [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 0), None]
    _finish(cohort, 0, 1)
    assert cohort.take() is None
    _finish(cohort, 0, 0)
    assert _taken(cohort, 3) == [(0, 3, 3), (0, 4, 4), None]

  @pytest.mark.parametrize('seed', range(40))
  def test_any_story_counts_each_unit_once(self, seed):
    rng = np.random.default_rng(seed)
    nums = rng.integers(0, 30, size=rng.integers(1, 4))
    ordered = rng.integers(0, 2, size=len(nums)).astype(bool)
    cohort = workers.Cohort(
        [_job(*job) for job in zip(nums, ordered)],
        max_batch=int(rng.integers(1, 8)), lead=int(rng.integers(1, 8)),
    )
    running, given_up, counted = [], [], []

    def finish(batch):
      for result in cohort.finish(workers.Result(batch, [])):
        counted.extend((result.batch.job, p) for p in result.batch.positions)

    while cohort:
      event = rng.choice(4)
      if event == 0 and (batch := cohort.take(int(rng.integers(1, 4)))) is not None:
        running.append(batch)
      elif event == 1 and running:
        finish(running.pop(rng.integers(len(running))))
      elif event == 2 and running:
        given_up.append(running.pop(rng.integers(len(running))))
        cohort.lose(given_up[-1])
      elif event == 3 and given_up:  # It answers when nobody waits for it any more.
        finish(given_up.pop())
    assert sorted(counted) == [(j, p) for j, num in enumerate(nums) for p in range(num)]
    for j in np.flatnonzero(ordered):
      assert [p for job, p in counted if job == j] == list(range(nums[j]))
