"""TensorFlow graphs as functions of tensors, movable between processes; needs TensorFlow alone.

The driver sends this module by value to workers on other machines, which need neither TensorFlow
Federated nor this package.
"""

from collections.abc import Callable, Sequence
import dataclasses
import uuid

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Graph:
  """A graph with its inputs and outputs.

  Attributes:
    graph_def: A serialized `GraphDef`.
    inputs: Names of the input tensors; datasets are variant tensors.
    outputs: Names of the output tensors.
    init_op: An operation that runs before all others (it initializes variables and tables); ''
      for none.
  """

  graph_def: bytes
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]
  init_op: str = ''

  def has_resources(self) -> bool:
    """Whether it has variables or tables, which two calls at the same time would share."""
    return bool(_resources(tf.compat.v1.GraphDef.FromString(self.graph_def)))

  def function(self) -> Callable[..., list[tf.Tensor]]:
    """Returns a new function from tensors to tensors.

    It has separate variables and tables, which start afresh in each call. So if the graph
    `has_resources`, concurrent calls need different functions.
    """
    graph_def = tf.compat.v1.GraphDef.FromString(self.graph_def)
    # Variables and tables get names that no other function's have.
    prefix = uuid.uuid4().hex
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


def _resources(graph_def: tf.compat.v1.GraphDef) -> list[tf.compat.v1.NodeDef]:
  """Returns the nodes of variables and tables."""
  nodes = [*graph_def.node]
  for function in graph_def.library.function:
    nodes += function.node_def
  return [node for node in nodes if 'shared_name' in node.attr]


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


def dataset_graph(dataset: tf.data.Dataset) -> bytes:
  """Returns a dataset, its data included, as bytes for `dataset_variant`."""
  variant = tf.data.experimental.to_variant(dataset)
  return tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()


def dataset_variant(graph: bytes) -> tf.Tensor:
  """Returns the variant tensor of a dataset from the bytes of `dataset_graph`."""
  return tf.raw_ops.DatasetFromGraph(graph_def=graph)


def use_one_thread_an_operation() -> bool:
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
