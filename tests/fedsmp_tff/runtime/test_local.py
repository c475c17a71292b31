"""Tests of clients in this process: devices, threads, and what is left afterwards."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import runtime
from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import local
from fedsmp_tff.runtime import workers


class TestComputation:

  @pytest.mark.parametrize('devices, workers, sentence', [
      (['GPU:7'], None, "'GPU:7', which TensorFlow does not see. Use one or more of CPU:0"),
      ([], None, 'empty'),
      (None, 0, 'positive integer. Found 0'),
  ])
  def test_bad_devices_and_workers_are_refused(self, devices, workers, sentence):
    with pytest.raises(ValueError, match=sentence), runtime.local_context(devices, workers):
      pass


def _add(by_variable=False):
  """The work of a client: its number plus the broadcast one."""
  init = ''
  with tf.Graph().as_default() as graph:
    one, other = (tf.compat.v1.placeholder(tf.float32, [], name) for name in 'ab')
    if by_variable:
      variable = tf.compat.v1.get_variable(
          'v', [], initializer=tf.zeros_initializer(), use_resource=True
      )
      one = variable.assign_add(one, read_value=True)
      init = tf.compat.v1.global_variables_initializer().name
    total = tf.add(one, other)
  return workers.Work(
      graphs.Graph(
          graph.as_graph_def().SerializeToString(), ('a:0', 'b:0'), (total.name,), init
      )
  )


def _results(pool, work, num):
  """Runs clients 0 to `num` - 1, to which the server sends 0.5; their results, by position."""
  clients = [[tf.constant(float(i))] for i in range(num)]
  job = workers.Job(work, [tf.constant(0.5)], clients)
  return {r.batch.start: r.values[0] for r in pool.run(job)}


class TestExecution:

  def test_clients_run_on_all_devices(self, monkeypatch):
    devices = [d.name for d in tf.config.list_logical_devices('CPU')]
    assert len(devices) == 2
    seen = set()
    original = graphs.Graph.function

    def function(graph):
      run = original(graph)

      def run_and_look(*tensors):
        results = run(*tensors)
        seen.update((t.device, threading.current_thread().name) for t in [tensors[-1], *results])
        return results

      return run_and_look

    monkeypatch.setattr(graphs.Graph, 'function', function)
    pool = local.LocalWorkers(devices, 2)
    results = _results(pool, _add(), 40)
    pool.close()
    assert results == {i: i + 0.5 for i in range(40)}
    # Weights and results are where the client ran; each worker keeps to its device.
    assert {device.rsplit('device:')[-1] for device, _ in seen} == {'CPU:0', 'CPU:1'}

  def test_threads_share_no_function_with_variables(self, monkeypatch):
    # For each function, the number of calls in progress when a call began.
    at_once, original = [], graphs.Graph.function

    def function(graph):
      run, active, mine = original(graph), [], []
      at_once.append(mine)

      def watched(*tensors):
        active.append(tensors)
        mine.append(len(active))
        time.sleep(0.01)  # For the other thread to come in, if it may.
        results = run(*tensors)
        active.pop()
        return results

      return watched

    monkeypatch.setattr(graphs.Graph, 'function', function)
    pool = local.LocalWorkers([tf.config.list_logical_devices('CPU')[0].name], 2)
    results = _results(pool, _add(by_variable=True), 20)
    pool.close()
    assert results == {i: i + 0.5 for i in range(20)}
    assert len(at_once) == 2 and set(sum(at_once, [])) == {1}

  def test_a_local_context_leaves_no_thread(self):
    before = set(threading.enumerate())
    with runtime.local_context(workers=3):

      @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
      def total(x):
        return tff.federated_sum(x)

      assert total(list(range(10))) == 45
    assert set(threading.enumerate()) <= before
