"""Tests of the server's graph, whose shared calls run on workers."""

import numpy as np
import tensorflow as tf

from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import local
from fedsmp_tff.runtime import server_graph
from fedsmp_tff.runtime import shared_calls

_SPEC = tf.TensorSpec([2])


def _server_graph():
  """From x and y to the sum of x * 0, x * 1 and x * 2, and to x + y."""
  times = shared_calls.function(lambda x, factor: x * factor, (_SPEC, tf.TensorSpec([])))
  with tf.Graph().as_default() as graph:
    x, y = (tf.compat.v1.placeholder(tf.float32, [2]) for _ in range(2))
    outputs = tf.add_n([times(x, tf.constant(float(i))) for i in range(3)]), x + y
  return server_graph.ServerGraph(graphs.Graph(
      graph.as_graph_def().SerializeToString(), (x.name, y.name),
      tuple(o.name for o in outputs),
  ))


class TestExecution:

  def test_from_start_to_finish(self):
    graph = _server_graph()
    x, y = tf.constant([1.0, 2.0]), tf.constant([5.0, 7.0])
    workers = local.LocalWorkers(local.default_devices(), 2)
    at_once = graph.finish(workers, [x, y])
    # The calls need x alone: they may run before y is there.
    assert graph.start([]) is None
    started = graph.start([x])
    assert len(started.job.units) == 3
    started.results.extend(r.values[0] for r in workers.run([started.job]))
    in_two = graph.finish(workers, [x, y], started)
    workers.close()
    for outputs in (at_once, in_two):
      np.testing.assert_array_equal(outputs[0], [3.0, 6.0])
      np.testing.assert_array_equal(outputs[1], [6.0, 9.0])
