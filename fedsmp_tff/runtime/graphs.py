"""TensorFlow graphs as functions of tensors, movable between processes; needs TensorFlow alone.

A worker on another machine runs this module, sent to it with its work, so that it
needs neither TensorFlow Federated nor this package.
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
    inputs: Names of the tensors that are fed; datasets as variant tensors.
    outputs: Names of the tensors that come out.
    init_op: An operation that runs before all others (it initializes variables and
      tables); '' for none.
  """

  graph_def: bytes
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]
  init_op: str = ''

  def has_resources(self) -> bool:
    """Whether it has variables or tables, which two calls at the same time would share."""
    return bool(_resources(tf.compat.v1.GraphDef.FromString(self.graph_def)))

  def function(self) -> Callable[..., list[tf.Tensor]]:
    """A new function from tensors to tensors.

    It has separate variables and tables, which start afresh in each call. So where the graph
    `has_resources`, functions that run at the same time must be different ones.
    """
    graph_def = tf.compat.v1.GraphDef.FromString(self.graph_def)
    _separate_resources(graph_def)
    if self.init_op:
      _run_first(graph_def, self.init_op.split(':')[0].lstrip('^'))
    wrapped = tf.compat.v1.wrap_function(
        lambda: tf.compat.v1.import_graph_def(graph_def, name=''), []
    )
    element = wrapped.graph.as_graph_element
    inputs = [element(name) for name in self.inputs]
    pruned = wrapped.prune(inputs, [element(name) for name in self.outputs])

    # A pruned function can't be called by position without an exception within, whose
    # text, with all numbers in it, took a tenth of a round; one that calls it can.
    @tf.function(
        input_signature=[tf.TensorSpec(i.shape, i.dtype) for i in inputs],
        autograph=False,
    )
    def call(*tensors):
      return pruned(*tensors)

    call.get_concrete_function()
    return lambda *tensors: list(call(*map(tf.convert_to_tensor, tensors)))


def _separate_resources(graph_def: tf.compat.v1.GraphDef) -> None:
  """Gives variables and tables names that no other function's have."""
  prefix = uuid.uuid4().hex
  for node in _resources(graph_def):
    name = node.attr['shared_name'].s.decode() or node.name
    node.attr['shared_name'].s = f'{prefix}_{name}'.encode()


def _resources(graph_def: tf.compat.v1.GraphDef) -> list[tf.compat.v1.NodeDef]:
  """The nodes of variables and tables."""
  nodes = [*graph_def.node]
  for function in graph_def.library.function:
    nodes += function.node_def
  return [node for node in nodes if 'shared_name' in node.attr]


def _run_first(graph_def: tf.compat.v1.GraphDef, init_op: str) -> None:
  """Makes every node wait for `init_op`, but for those that it needs itself."""
  nodes = {node.name: node for node in graph_def.node}
  needed, found = set(), [init_op]
  while found:
    name = found.pop()
    if name not in needed:
      needed.add(name)
      found += [i.split(':')[0].lstrip('^') for i in nodes[name].input]
  for node in graph_def.node:
    if node.name not in needed:
      node.input.append(f'^{init_op}')


def dataset_graph(dataset: tf.data.Dataset) -> bytes:
  """A dataset, its data included, as bytes for `dataset_variant`."""
  variant = tf.data.experimental.to_variant(dataset)
  return tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()


def dataset_variant(graph: bytes) -> tf.Tensor:
  """The variant tensor of the dataset that `dataset_graph` made bytes of."""
  return tf.raw_ops.DatasetFromGraph(graph_def=graph)


def use_one_thread_an_operation() -> bool:
  """Has TensorFlow run each operation on one thread; whether it does from now on.

  With a client on each processor that is the fastest arrangement, and the results
  do not depend on the number of processors. It has to be set before TensorFlow
  runs anything.
  """
  try:
    tf.config.threading.set_intra_op_parallelism_threads(1)
  except RuntimeError:  # It has started already.
    pass
  return tf.config.threading.get_intra_op_parallelism_threads() == 1


def on_device(
    device: str, tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
  """The tensors, those of datasets left alone, on `device`."""
  with tf.device(device):
    return [
        t if t.dtype == tf.variant else tf.identity(t) for t in tensors
    ]
