"""Tests of cutting a graph at its shared calls."""

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import shared_calls


def _graph(build, *specs):
  """The graph of a function of tensors."""
  with tf.Graph().as_default() as graph:
    inputs = [tf.compat.v1.placeholder(s.dtype, s.shape) for s in specs]
    outputs = build(*inputs)
  return graphs.Graph(
      graph.as_graph_def().SerializeToString(),
      tuple(i.name for i in inputs),
      tuple(o.name for o in outputs),
  )


def _product():
  spec = tf.TensorSpec([None])
  return shared_calls.function(lambda weights, own: weights * own, (spec, spec))


_VECTOR, _NUMBER = tf.TensorSpec([3]), tf.TensorSpec([])


def _run(split, inputs):
  """Runs the three parts as a runtime does."""
  inputs = [tf.constant(i, tf.float32) for i in inputs]
  tensors = split.before.function()(*(inputs[i] for i in split.known))
  common, rest = tensors[: split.num_common], tensors[split.num_common :]
  call = split.call.function()
  num = split.num_own
  results = [
      call(*rest[i * num : (i + 1) * num], *common)[0] for i in range(split.num_calls)
  ]
  return split.after.function()(*inputs, *rest[num * split.num_calls :], *results)


class TestComputation:

  def test_a_graph_without_shared_calls_stays_whole(self):
    assert shared_calls.split(_graph(lambda x: [x + 1], _VECTOR)) is None

  def test_calls_of_calls_stay_whole(self):
    product = _product()
    graph = _graph(lambda x: [product(product(x, x), x)], _VECTOR)
    assert shared_calls.split(graph) is None

  def test_inputs_that_calls_do_not_need_are_not_known(self):
    product = _product()
    graph = _graph(lambda x, y: [product(y, y) + x], _VECTOR, _VECTOR)
    assert shared_calls.split(graph).known == (1,)


class TestExecution:

  def test_the_parts_make_the_whole(self):
    product = _product()

    def build(x, scale, unused):
      weights = x * scale
      owns = [tf.fill([3], float(i)) for i in range(4)]
      updates = tf.add_n([product(weights, own) for own in owns])
      # What goes in front of the calls goes on behind them too, and comes out.
      return [updates + weights, weights, unused]

    graph = _graph(build, _VECTOR, _NUMBER, _NUMBER)
    inputs = ([1.0, 2.0, 3.0], 2.0, 7.0)
    split = shared_calls.split(graph)
    assert (split.num_calls, split.num_common, split.num_own) == (4, 1, 1)
    whole = graph.function()(*(tf.constant(i) for i in inputs))
    np.testing.assert_array_equal(whole[0], 7 * 2 * np.array([1.0, 2.0, 3.0]))
    for part, expected in zip(_run(split, inputs), whole, strict=True):
      np.testing.assert_array_equal(part, expected)

  @pytest.mark.parametrize('num', [1, 3])
  def test_each_operation_runs_once(self, num):
    product = _product()

    def build(x):
      # It has other bits each time that it runs.
      chance = tf.random.uniform([3])
      return [chance, x, *(product(chance, x + float(i)) for i in range(num))]

    split = shared_calls.split(_graph(build, _VECTOR))
    chance, x, *products = _run(split, [[1.0, 2.0, 3.0]])
    for i, result in enumerate(products):
      np.testing.assert_allclose(result, chance * (x + float(i)), rtol=1e-6)
