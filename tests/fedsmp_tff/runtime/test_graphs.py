"""Tests of graphs as functions: variables of their own, started anew in each call."""

import numpy as np
import pytest
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

  def test_only_graphs_with_variables_have_resources(self):
    assert _counter().has_resources()
    with tf.Graph().as_default() as graph:
      x = tf.compat.v1.placeholder(tf.int32, [], 'x')
      dataset = tf.data.Dataset.range(3).map(lambda i: i + 1)
      out = tf.cast(dataset.reduce(np.int64(0), lambda a, b: a + b), tf.int32) + x
    shared = graphs.Graph(graph.as_graph_def().SerializeToString(), ('x:0',), (out.name,))
    assert not shared.has_resources()
    assert int(shared.function()(tf.constant(4))[0]) == 10

  def test_operations_use_a_single_thread(self):
    tf.constant(1) + 1
    assert graphs.use_one_thread_per_op()  # conftest.py did it in time.


def _reductions():
  """A graph of reductions: in the graph, in a function, in a dataset's function, with variables."""
  with tf.Graph().as_default() as graph:
    variant = tf.compat.v1.placeholder(tf.variant, [], 'numbers')
    numbers = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.float32))
    offset = tf.compat.v1.placeholder(tf.float32, [], 'offset')
    seen = tf.compat.v1.get_variable(
        'seen', [], tf.int32, tf.constant_initializer(0), use_resource=True
    )
    rounded = tf.function(lambda x: tf.round(x) + offset)  # A call within a reduction.

    @tf.function(autograph=False)
    def in_function(numbers):
      def step(state, x):
        total, last, joined = state
        with tf.control_dependencies([seen.assign_add(1)]):
          # Subtraction and a growing shape depend on the order of the elements.
          return rounded(x) - total, x, tf.concat([joined[-3:], [x]], 0)

      start = tf.constant(0.0), tf.constant(-1.0), tf.zeros([0])
      total, last, joined = numbers.reduce(start, step)
      return total, last, joined, seen.read_value()

    sums = numbers.batch(2).map(
        lambda pair: tf.data.Dataset.from_tensor_slices(pair).reduce(0.0, lambda a, x: a + x)
    )
    outputs = *in_function(numbers), sums.reduce(1.0, lambda a, x: a * x)
    init = tf.compat.v1.global_variables_initializer()
  return graphs.Graph(
      graph.as_graph_def().SerializeToString(), ('numbers:0', 'offset:0'),
      tuple(output.name for output in outputs), init.name,
  )


@pytest.mark.parametrize('numbers', [[], [1.4], [3.7, 0.2, 5.6, 9.1, 2.2]])
def test_loops_equal_the_replaced_reductions(numbers):
  total, last, joined, product = 0.0, -1.0, [], 1.0
  for x in numbers:
    total, last, joined = round(x) + 0.5 - total, x, [*joined[-3:], x]
  for i in range(0, len(numbers), 2):
    product *= sum(numbers[i : i + 2])
  dataset = tf.data.Dataset.from_tensor_slices(np.array(numbers, np.float32))
  for function in (_reductions().function(), _reductions().function()):
    for _ in range(2):  # Variables start anew.
      results = function(tf.data.experimental.to_variant(dataset), tf.constant(0.5))
      for result, expected in zip(results, (total, last, joined, len(numbers), product)):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_all_reductions_are_replaced():
  graph_def = tf.compat.v1.GraphDef.FromString(_reductions().graph_def)
  assert sum(node.op == 'ReduceDataset' for node in graphs.all_nodes(graph_def)) == 3
  graphs._replace_reductions(graph_def)
  assert not any(node.op == 'ReduceDataset' for node in graphs.all_nodes(graph_def))


def _client(x, y):
  """Results of a small client: dependent on the order of floats, and refused for y = 13."""
  with tf.control_dependencies([tf.debugging.Assert(tf.not_equal(y, 13), [y])]):
    noise = tf.random.stateless_normal([50], [1, y])
  return tf.reduce_sum(tf.tanh(tf.tensordot(x, x, 1) + noise)), y + 1


def _clients_graph():
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [50], 'x')
    y = tf.compat.v1.placeholder(tf.int32, [], 'y')
    outputs = _client(x + tf.compat.v1.placeholder(tf.float32, [], 'b'), y)
  names = tuple(output.name for output in outputs)
  return graphs.Graph(graph.as_graph_def().SerializeToString(), ('x:0', 'y:0', 'b:0'), names)


class TestClientsFunction:

  def _run(self, function, clients):
    broadcast = [tf.constant(0.25)]
    return [tuple(r.item() for r in results) for results in function.results(clients, broadcast)]

  def test_groups_equal_clients_run_alone(self, monkeypatch):
    rng = np.random.default_rng(4)
    clients = [
        [tf.constant(rng.standard_normal(50), tf.float32), tf.constant(100 + i)] for i in range(30)
    ]
    alone = graphs.ClientsFunction(_clients_graph())
    expected = self._run(alone, clients)
    assert not alone.is_short and [y for _, y in expected] == list(range(101, 131))
    monkeypatch.setattr(graphs, '_NUM_ALONE', 3)
    monkeypatch.setattr(graphs, '_SHORT_SECONDS', 1.0)
    sizes, run_group = [], graphs.ClientsFunction._run_group

    def watch(self, group, broadcast):
      sizes.append(len(group))
      return run_group(self, group, broadcast)

    monkeypatch.setattr(graphs.ClientsFunction, '_run_group', watch)
    # The first is not timed, three are, and two are left at the end.
    assert self._run(graphs.ClientsFunction(_clients_graph()), clients) == expected
    assert sizes == [8, 8, 8]

  def test_an_error_in_a_group_is_raised_at_its_client(self, monkeypatch):
    monkeypatch.setattr(graphs, '_NUM_ALONE', 1)
    monkeypatch.setattr(graphs, '_SHORT_SECONDS', 1.0)
    clients = [[tf.zeros([50]), tf.constant(i)] for i in range(20)]
    results = graphs.ClientsFunction(_clients_graph()).results(clients, [tf.constant(0.0)])
    assert [next(results)[1] for _ in range(13)] == list(range(1, 14))
    with pytest.raises(tf.errors.InvalidArgumentError):
      next(results)

  @pytest.mark.parametrize('seconds, has_variables', [(1e-9, False), (1.0, True)])
  def test_long_clients_and_variables_run_alone(self, seconds, has_variables, monkeypatch):
    monkeypatch.setattr(graphs, '_NUM_ALONE', 1)
    monkeypatch.setattr(graphs, '_SHORT_SECONDS', seconds)
    graph = _counter() if has_variables else _clients_graph()
    client = [tf.constant(5)] if has_variables else [tf.zeros([50]), tf.constant(4)]
    function = graphs.ClientsFunction(graph)
    broadcast = [] if has_variables else [tf.constant(0.0)]
    results = [r[-1].item() for r in function.results([client] * 20, broadcast)]
    assert results == [15 if has_variables else 5] * 20 and not function.is_short
