"""Tests of graphs as functions: variables of their own, started anew in each call."""

import numpy as np
import tensorflow as tf

from fedsmp_tff.runtime import graphs


def _counter():
  """A graph that adds its input to a variable, which starts at ten."""
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.int32, [], 'x')
    total = tf.compat.v1.get_variable(
        'total', [], tf.int32, tf.constant_initializer(10), use_resource=True
    )
    out = tf.identity(total.assign_add(x, read_value=True), 'out')
    init = tf.compat.v1.global_variables_initializer()
  return graphs.Graph(
      graph.as_graph_def().SerializeToString(), ('x:0',), (out.name,), init.name
  )


class TestExecution:

  def test_variables_start_anew_in_each_call(self):
    function = _counter().function()
    assert [int(function(tf.constant(i))[0]) for i in (1, 2, 1)] == [11, 12, 11]

  def test_functions_share_no_variable(self, monkeypatch):
    imported, import_graph_def = [], tf.compat.v1.import_graph_def

    def watch(graph_def, **options):
      imported.append([n.attr['shared_name'].s for n in graph_def.node if n.op == 'VarHandleOp'])
      return import_graph_def(graph_def, **options)

    monkeypatch.setattr(tf.compat.v1, 'import_graph_def', watch)
    for _ in range(2):
      _counter().function()
    assert len(imported[0]) == len(imported[1]) == 1 and imported[0] != imported[1]

  def test_only_variables_and_tables_can_not_be_shared(self):
    assert _counter().has_resources()
    with tf.Graph().as_default() as graph:
      x = tf.compat.v1.placeholder(tf.int32, [], 'x')
      dataset = tf.data.Dataset.range(3).map(lambda i: i + 1)
      out = tf.cast(dataset.reduce(np.int64(0), lambda a, b: a + b), tf.int32) + x
    shared = graphs.Graph(graph.as_graph_def().SerializeToString(), ('x:0',), (out.name,))
    assert not shared.has_resources()
    assert int(shared.function()(tf.constant(4))[0]) == 10

  def test_one_thread_an_operation_once_tensorflow_runs(self):
    tf.constant(1) + 1
    assert graphs.use_one_thread_an_operation()  # conftest.py did it in time.
