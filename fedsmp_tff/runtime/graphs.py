"""TensorFlow graphs as functions of tensors, movable between processes; needs TensorFlow alone.

The driver sends this module by value to workers on other machines, which need neither TensorFlow
Federated nor this package.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
import dataclasses
import threading
import time
from typing import Any
import uuid

import numpy as np
import tensorflow as tf

# Clients that take at most `_SHORT_SECONDS` on average run `GROUP` per call from Python, and share
# its time and all CPU cores. The function of a group takes a second to build, so that the first
# `_NUM_ALONE` clients run alone.
GROUP, _SHORT_SECONDS, _NUM_ALONE = 8, 0.005, 100

# Iterators stay here where clients train on a GPU.
_DATASET_DEVICE = 'CPU:0'
# To optimize the pipeline of a client takes longer than to run it once.
_ITERATOR_OPTIONS = tf.data.Options()
_ITERATOR_OPTIONS.autotune.enabled = False
_ITERATOR_OPTIONS.experimental_optimization.apply_default_optimizations = False


@dataclasses.dataclass(frozen=True)
class Graph:
  """A graph with its inputs and outputs."""

  graph_def: bytes  # A serialized `GraphDef`.
  inputs: tuple[str, ...]  # Names of the input tensors; datasets are variant tensors.
  outputs: tuple[str, ...]  # Names of the output tensors.
  init_op: str = ''  # Runs before all others, to initialize variables and tables.

  def has_resources(self) -> bool:
    """Whether it has variables or tables, which two calls at the same time would share."""
    return bool(_resources(tf.compat.v1.GraphDef.FromString(self.graph_def)))

  def function(self) -> Callable[..., list[tf.Tensor]]:
    """Returns a new function from tensors to tensors.

    It has separate variables and tables, which start afresh in each call. So if the graph
    `has_resources`, concurrent calls need different functions.
    """
    graph_def = tf.compat.v1.GraphDef.FromString(self.graph_def)
    # Variables, tables and changed functions get names that no other function's have.
    prefix = uuid.uuid4().hex
    if any(node.op == 'ReduceDataset' for node in all_nodes(graph_def)):
      _rename_functions(graph_def, prefix)
      _replace_reductions(graph_def)
    for node in _resources(graph_def):
      name = node.attr['shared_name'].s.decode() or node.name
      node.attr['shared_name'].s = f'{prefix}_{name}'.encode()
    if self.init_op:
      _run_first(graph_def, _node_of(self.init_op))
    wrapped = tf.compat.v1.wrap_function(
        lambda: tf.compat.v1.import_graph_def(graph_def, name=''), []
    )
    element = wrapped.graph.as_graph_element
    inputs = [element(name) for name in self.inputs]
    pruned = wrapped.prune(inputs, [element(name) for name in self.outputs])

    # A positional call of a pruned function raises and catches an exception, whose text with all
    # numbers in it took a tenth of a round; a `tf.function` around it does not.
    @tf.function(
        input_signature=[tf.TensorSpec(i.shape, i.dtype) for i in inputs], autograph=False
    )
    def call(*tensors):
      return pruned(*tensors)

    call.get_concrete_function()
    return lambda *tensors: list(call(*map(tf.convert_to_tensor, tensors)))


class ClientsFunction:
  """A client's graph, for many clients: short ones run in groups, in one call from Python."""

  def __init__(self, graph: Graph):
    """Initializes; the inputs of `graph` are a client's tensors, then the broadcast ones."""
    self._function = graph.function()
    self._alone, self._group = _OptimizedOnce(self._function), None
    # The clients of a group would share variables.
    self._can_group = not graph.has_resources()
    self._making = threading.Lock()
    self._num_clients, self._seconds = 0, 0.0  # Without first calls, which optimize the graph.

  @property
  def is_short(self) -> bool:
    """Whether clients run in groups."""
    return (
        self._can_group
        and self._num_clients >= _NUM_ALONE
        and self._seconds <= _SHORT_SECONDS * self._num_clients
    )

  def results(
      self, clients: Sequence[Sequence[tf.Tensor]], broadcast: Sequence[tf.Tensor]
  ) -> Iterator[list[np.ndarray]]:
    """Yields the results of each client, in order; an error is raised at the client's turn."""
    start = 0
    while start < len(clients):
      group = clients[start : start + (GROUP if self.is_short else 1)]
      start += len(group)
      if len(group) == GROUP:
        try:
          yield from self._run_group(group, broadcast)
          continue
        except tf.errors.OpError:
          pass  # Nothing was yielded: alone, the client with the error is known.
      for client in group:
        [results] = self._timed(self._alone, [client], broadcast)
        yield results

  def _run_group(self, group, broadcast) -> list[list[np.ndarray]]:
    with self._making:
      if self._group is None:
        self._group = _OptimizedOnce(_grouped(self._function, group[0], broadcast))
    return self._timed(self._group, group, broadcast)

  def _timed(self, function, clients, broadcast) -> list[list[np.ndarray]]:
    was_called, start = function.was_called, time.perf_counter()
    flat = function(*(tensor for client in clients for tensor in client), *broadcast)
    arrays = [np.asarray(result.numpy()) for result in flat]
    if was_called:
      self._num_clients += len(clients)
      self._seconds += time.perf_counter() - start
    num = len(arrays) // len(clients)
    return [arrays[i * num : (i + 1) * num] for i in range(len(clients))]


class _OptimizedOnce:
  """A function whose first call ends before any other begins.

  TensorFlow optimizes the graph in the first call, and once more in each concurrent one.
  """

  def __init__(self, function: Callable[..., list[tf.Tensor]]):
    self._function = function
    self._first = threading.Lock()
    self.was_called = False

  def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
    with self._first:
      if not self.was_called:
        results = self._function(*tensors)
        self.was_called = True
        return results
    return self._function(*tensors)


def _grouped(function, client, broadcast) -> Callable[..., list[tf.Tensor]]:
  """Returns a function of the tensors of `GROUP` clients, and the broadcast ones."""
  num = len(client)
  specs = [tf.TensorSpec(t.shape, t.dtype) for t in (*list(client) * GROUP, *broadcast)]

  @tf.function(input_signature=specs, autograph=False)
  def call(*tensors):
    shared = tensors[GROUP * num :]
    return [
        result
        for i in range(GROUP)
        for result in function(*tensors[i * num : (i + 1) * num], *shared)
    ]

  call.get_concrete_function()
  return call


def _rename_functions(graph_def: tf.compat.v1.GraphDef, prefix: str) -> None:
  """Adds a prefix to the name of each function: a process keeps one definition per name."""
  names = {}
  for function in graph_def.library.function:
    name = function.signature.name
    names[name] = function.signature.name = f'{prefix}_{name}'
  for node in all_nodes(graph_def):
    node.op = names.get(node.op, node.op)
    for value in node.attr.values():
      for called in ([value.func] if value.HasField('func') else value.list.func):
        called.name = names.get(called.name, called.name)
  del graph_def.library.gradient[:]  # Nothing differentiates the graph.


def _replace_reductions(graph_def: tf.compat.v1.GraphDef) -> None:
  """Replaces every `Dataset.reduce` of a graph by a loop over an iterator, with equal results.

  TensorFlow optimizes what a reduction's function calls anew in every reduction, which takes ten
  times as long as a small client's training; it optimizes a loop once, with the graph around it.
  """
  library = {function.signature.name: function for function in graph_def.library.function}
  for owner in (graph_def, *library.values()):
    nodes = owner.node if owner is graph_def else owner.node_def
    reductions = [node for node in nodes if node.op == 'ReduceDataset']
    for node in reductions:
      loop = _loop(node, library[node.attr['f'].func.name])
      graph_def.library.function.extend(
          [loop.function_def, *loop.graph.as_graph_def().library.function]
      )
      # The inputs stay the same: a dataset, the initial state, further arguments.
      node.op = 'StatefulPartitionedCall'
      node.attr.clear()
      node.attr['f'].func.name = loop.function_def.signature.name
      for name, tensors in (('Tin', loop.inputs), ('Tout', loop.outputs)):
        node.attr[name].list.type.extend(t.dtype.as_datatype_enum for t in tensors)
    if reductions and owner is not graph_def:
      _rename_outputs(owner, {node.name for node in reductions})


def _loop(reduction: tf.compat.v1.NodeDef, step: Any) -> Any:
  """Returns a concrete function of a reduction's inputs that calls its `step` in a loop."""
  step.attr.pop('_tf_data_function', None)  # TensorFlow does not optimize what has this mark.
  types = [tf.as_dtype(argument.type) for argument in step.signature.input_arg]
  num_state, num_others = (len(reduction.attr[key].list.type) for key in ('Tstate', 'Targuments'))
  first_other = len(types) - num_others
  shapes = [tf.TensorShape(shape) for shape in reduction.attr['output_shapes'].list.shape]
  element_shapes = [
      step.arg_attr[i].attr['_output_shapes'].list.shape for i in range(num_state, first_other)
  ]
  element_spec = tuple(
      tf.TensorSpec(known[0] if known else None, dtype)
      for known, dtype in zip(element_shapes, types[num_state:])
  )

  def loop(dataset, *rest):
    state, others = rest[:num_state], rest[num_state:]
    with tf.device(_DATASET_DEVICE):
      dataset = tf.data.experimental.from_variant(dataset, element_spec)
      iterator = iter(dataset.with_options(_ITERATOR_OPTIONS))
      first = iterator.get_next_as_optional()

    def has_value(optional, *unused_state):
      with tf.device(_DATASET_DEVICE):
        return optional.has_value()

    def body(optional, *state):
      with tf.device(_DATASET_DEVICE):
        element = optional.get_value()
        optional = iterator.get_next_as_optional()
      state = tf.raw_ops.StatefulPartitionedCall(
          args=[*state, *element, *others], Tout=types[:num_state], f=step.signature.name
      )
      return optional, *map(tf.ensure_shape, state, shapes)

    _, *state = tf.while_loop(has_value, body, (first, *state), parallel_iterations=1)
    return state

  return tf.function(loop, autograph=False).get_concrete_function(
      tf.TensorSpec([], tf.variant),
      *map(tf.TensorSpec, shapes, types),
      *(tf.TensorSpec(None, dtype) for dtype in types[first_other:]),
  )


def _rename_outputs(function: Any, names: Collection[str]) -> None:
  """Renames the outputs of former reductions where their function uses them."""
  def rename(reference):
    name, _, output = reference.partition(':')  # Of 'NODE:components:3'.
    return f'{name}:output:{output.split(":")[1]}' if output and name in names else reference

  for node in function.node_def:
    node.input[:] = map(rename, [*node.input])
  for name, reference in function.ret.items():
    function.ret[name] = rename(reference)


def all_nodes(graph_def: tf.compat.v1.GraphDef) -> list[tf.compat.v1.NodeDef]:
  """Returns the nodes of a graph and of its functions."""
  nodes = [*graph_def.node]
  for function in graph_def.library.function:
    nodes += function.node_def
  return nodes


def _resources(graph_def: tf.compat.v1.GraphDef) -> list[tf.compat.v1.NodeDef]:
  """Returns the nodes of variables and tables."""
  return [node for node in all_nodes(graph_def) if 'shared_name' in node.attr]


def _run_first(graph_def: tf.compat.v1.GraphDef, init_op: str) -> None:
  """Makes every node wait for `init_op`, except the nodes that it needs itself."""
  nodes = {node.name: node for node in graph_def.node}
  needed, pending = set(), [init_op]
  while pending:
    name = pending.pop()
    if name not in needed:
      needed.add(name)
      pending += map(_node_of, nodes[name].input)
  for node in graph_def.node:
    if node.name not in needed:
      node.input.append(f'^{init_op}')


def _node_of(reference: str) -> str:
  return reference.split(':')[0].lstrip('^')


def use_one_thread_per_op() -> bool:
  """Has TensorFlow run each operation on one thread; returns whether it does from now on.

  With a client on each CPU core this is the fastest arrangement, and results do not depend on the
  number of cores. It has no effect once TensorFlow has run anything.
  """
  try:
    tf.config.threading.set_intra_op_parallelism_threads(1)
  except RuntimeError:  # TensorFlow has started already.
    pass
  return tf.config.threading.get_intra_op_parallelism_threads() == 1


def on_device(device: str, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Copies tensors, except datasets, to `device`."""
  with tf.device(device):
    return [t if t.dtype == tf.variant else tf.identity(t) for t in tensors]
