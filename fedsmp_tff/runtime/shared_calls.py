"""Calls of one function in the server's graph that all workers share; needs TensorFlow alone.

A server's part of a round may have work of its own that is many independent calls of one
function, such as trainings on public data. `function` marks the function; `split` cuts a graph
with such calls into what runs before them, a call, and what runs after them. A context that
knows nothing of this runs the whole graph on the server, with the same result.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
from typing import Any, Optional

import tensorflow as tf

from fedsmp_tff.runtime import graphs

_MARK = 'fedsmp_tff.shared'
_CALLS = ('PartitionedCall', 'StatefulPartitionedCall')


def function(
    python_function: Callable[..., tf.Tensor], specs: Sequence[Any]
) -> Callable[..., tf.Tensor]:
  """Traces a function whose calls workers may share.

  Args:
    python_function: From structures of tensors to one tensor. It captures no tensor.
    specs: The structures of `tf.TensorSpec`s that it takes.

  Returns:
    The function, for calls outside of any branch or loop; within them it runs where they do.
  """
  # A marked function takes tensors, no structures of them.
  traced = tf.function(
      lambda *tensors: python_function(*tf.nest.pack_sequence_as(specs, tensors)),
      autograph=False,
      experimental_implements=_MARK,
  ).get_concrete_function(*tf.nest.flatten(specs))
  return lambda *arguments: traced(*tf.nest.flatten(arguments))


@dataclasses.dataclass(frozen=True)
class Split:
  """A graph in three parts.

  Attributes:
    before: From the graph's inputs at `known` to the tensors `common`, then those of each
      call's own in turn, then `carried`.
    known: Positions of the graph's inputs that `before` takes.
    call: From a call's own inputs, then the common ones, to its result.
    num_calls: The number of calls.
    num_common: The number of inputs that all calls have in common.
    num_own: The number of inputs that each call has for itself.
    after: From all of the graph's inputs, then the carried tensors, then the results of the
      calls, to the graph's outputs.
  """

  before: graphs.Graph
  known: tuple[int, ...]
  call: graphs.Graph
  num_calls: int
  num_common: int
  num_own: int
  after: graphs.Graph


def split(graph: graphs.Graph) -> Optional[Split]:
  """Cuts a graph at its marked calls; None if it has none that can be cut out.

  No operation is in two parts, so that each runs once, random ones included.
  """
  if graph.init_op:  # Its variables would be initialized in each part.
    return None
  graph_def = tf.compat.v1.GraphDef.FromString(graph.graph_def)
  nodes = {node.name: node for node in graph_def.node}
  marked = {
      f.signature.name for f in graph_def.library.function
      if f.attr['_implements'].s.decode() == _MARK
  }
  calls = [
      node for node in graph_def.node
      if node.op in _CALLS and node.attr['f'].func.name in marked
  ]
  names = {call.name for call in calls}
  ancestors = _ancestors(nodes, (i for call in calls for i in call.input))
  if not calls or len({call.attr['f'].func.name for call in calls}) > 1 or names & ancestors:
    return None
  columns = list(zip(*([_tensor(i) for i in call.input] for call in calls)))
  is_common = [len(calls) > 1 and len(set(column)) == 1 for column in columns]
  common = [column[0] for column, shared in zip(columns, is_common) if shared]
  own = [
      column[i]
      for i in range(len(calls))
      for column, shared in zip(columns, is_common) if not shared
  ]
  inputs = [name.split(':')[0] for name in graph.inputs]
  carried = _carried(graph_def, graph.outputs, ancestors, names | set(inputs))
  known = tuple(i for i, name in enumerate(inputs) if name in ancestors)
  results = [f'{call.name}:0' for call in calls]
  return Split(
      before=dataclasses.replace(
          graph, inputs=tuple(graph.inputs[i] for i in known), outputs=(*common, *own, *carried)
      ),
      known=known,
      call=_call_graph(calls[0], is_common, graph_def.library),
      num_calls=len(calls),
      num_common=len(common),
      num_own=len(columns) - len(common),
      after=dataclasses.replace(graph, inputs=(*graph.inputs, *carried, *results)),
  )


def _tensor(name: str) -> str:
  """The tensor that an input of a node names."""
  return name if ':' in name else f'{name}:0'


def _ancestors(nodes: dict[str, Any], names: Iterable[str]) -> set[str]:
  """The nodes that tensors depend on."""
  found, waiting = set(), [*names]
  while waiting:
    name = waiting.pop().split(':')[0].lstrip('^')
    if name not in found:
      found.add(name)
      waiting += nodes[name].input
  return found


def _carried(graph_def, outputs, before: set[str], fed: set[str]) -> list[str]:
  """The tensors that come out of the nodes `before` and go into others."""
  constants = {node.name for node in graph_def.node if node.op == 'Const'}
  used: Iterator[str] = (
      i for node in graph_def.node if node.name not in before | fed for i in node.input
  )
  found = collections.OrderedDict()
  for name in [*used, *outputs]:
    node = name.split(':')[0]
    if not name.startswith('^') and node in before - fed - constants:
      found[_tensor(name)] = None
  return list(found)


def _call_graph(call, is_common: Sequence[bool], library) -> graphs.Graph:
  """A graph of one call, its own inputs first: the same bytes whichever graph has the call."""
  graph_def = tf.compat.v1.GraphDef()
  graph_def.library.function.extend(_functions_of(call, library))
  node = graph_def.node.add()
  node.CopyFrom(call)
  node.name = 'call'
  del node.input[:]
  names = [f'input_{i}' for i in range(len(is_common))]
  for name, dtype in zip(names, call.attr['Tin'].list.type):
    placeholder = graph_def.node.add(name=name, op='Placeholder')
    placeholder.attr['dtype'].type = dtype
    placeholder.attr['shape'].shape.unknown_rank = True
  node.input.extend(names)
  order = sorted(range(len(names)), key=lambda i: is_common[i])
  return graphs.Graph(
      graph_def.SerializeToString(deterministic=True),
      tuple(f'{names[i]}:0' for i in order),
      ('call:0',),
  )


def _functions_of(call, library) -> list[Any]:
  """The functions that a call needs, in the order of their names."""
  functions = {f.signature.name: f for f in library.function}
  found, waiting = {}, [call]
  while waiting:
    for value in waiting.pop().attr.values():
      for name in (value.func.name, *(f.name for f in value.list.func)):
        if name in functions and name not in found:
          found[name] = functions[name]
          waiting += functions[name].node_def
  return [found[name] for name in sorted(found)]
