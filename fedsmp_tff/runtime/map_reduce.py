"""A TFF context that runs rounds as TensorFlow graphs: on the server here, on clients anywhere.

TFF compiles a round to `tff.backends.mapreduce.MapReduceForm`: plain TensorFlow
graphs for what the server does first (`prepare`), what a client does (`work`), how
results add up (`zero`, `accumulate`, `report`, and secure sums of integers), and what
the server does last (`update`). This module runs them; where the clients' graph
runs is the business of a `Workers`.
"""

from collections.abc import Callable
from typing import Any
import weakref

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import flattening
from fedsmp_tff.runtime import batches
from fedsmp_tff.runtime import checks
from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import values
from fedsmp_tff.runtime import workers as workers_lib

# TensorFlow optimizes a graph where it runs it; before, that costs time and can undo
# a choice of kernels by device.
_NO_GRAPPLER = tf.compat.v1.ConfigProto()
_NO_GRAPPLER.graph_options.rewrite_options.disable_meta_optimizer = True


class NoMapReduceFormError(TypeError):
  """The computation can't run in this context."""


class MapReduceContext(tff.program.FederatedContext):
  """Runs computations whose clients' part is one graph, as in a federated learning round.

  It is a context for programs (`tff.learning.programs.train_model`), too, whose values are there
  at once: `invoke` returns them, not references to them.

  These are: `tff.tensorflow.computation`s; computations on the server; and
  those that broadcast, map clients, aggregate, securely or not, and end on the
  server, in this order and any of it left out. Secure aggregation is SIMULATED: the
  sums are plain, with the range checks of TFF's own test runtime.
  """

  def __init__(self, workers: workers_lib.Workers):
    """Initializes the context.

    Args:
      workers: Where clients run; `close` closes it.
    """
    self._workers = workers
    self._compiled = {}

  def close(self) -> None:
    self._workers.close()

  def invoke(
      self, comp: tff.framework.ConcreteComputation, arg: Any
  ) -> Any:
    """Runs a computation; see `tff.framework.SyncContext`.

    Raises:
      NoMapReduceFormError: If this context can't run it, with one that can.
      TypeError: If the argument is not of the computation's parameter type.
      ValueError: If a client's integers are out of the range that it declared.
    """
    compiled = self._compiled.get(id(comp))
    if compiled is None:
      compiled = _compile(comp)
      # A computation's own hash reads all of it, constants included.
      self._compiled[id(comp)] = compiled
      weakref.finalize(comp, self._compiled.pop, id(comp), None)
    return compiled(self._workers, arg)


def _compile(
    comp: tff.framework.ConcreteComputation,
) -> Callable[[workers_lib.Workers, Any], Any]:
  function_type = comp.type_signature
  has_clients = tff.types.contains(
      function_type,
      lambda t: isinstance(t, tff.FederatedType) and t.placement is tff.CLIENTS,
  )
  try:
    if has_clients:
      return _Round(comp)
    return _Local(comp)
  except Exception as error:  # TFF's compiler raises many kinds.
    raise NoMapReduceFormError(
        f'The computation of type {function_type.compact_representation()} has no'
        f' MapReduceForm ({type(error).__name__}: {error}), which this context needs;'
        " run it in TFF's own, `tff.backends.test.create_sync_test_cpp_execution_context()`."
    ) from error


class _Local:
  """A computation without clients, as one graph."""

  def __init__(self, comp: tff.framework.ConcreteComputation):
    self._type = comp.type_signature
    proto = tff.framework.serialize_computation(comp)
    if proto.WhichOneof('computation') != 'tensorflow':
      proto = tff.backends.mapreduce.consolidate_and_extract_local_processing(
          comp.to_building_block(), _NO_GRAPPLER
      ).proto
    if not tff.types.is_structure_of_tensors(
        values.without_placement(self._type.result)
    ):
      raise TypeError(f'its result is of type {self._type.result}')
    self._function = _graph_of(proto).function()

  def __call__(self, workers: workers_lib.Workers, arg: Any) -> Any:
    del workers  # There are no clients.
    leaves = []
    if self._type.parameter is not None:
      parameter = values.without_placement(self._type.parameter)
      leaves = values.leaves_of(arg, parameter)
    outputs = self._function(*map(values.tensor_of, leaves))
    return values.value_of(outputs, self._type.result)


class _Round:
  """A computation with clients, as the graphs of its `MapReduceForm`."""

  def __init__(self, comp: tff.framework.ConcreteComputation):
    self._type = comp.type_signature
    self._takes_one = isinstance(self._type.parameter, tff.FederatedType)
    self._params = (
        [self._type.parameter] if self._takes_one else list(self._type.parameter)
    )
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
        self._as_round(comp), _NO_GRAPPLER
    )
    plain, *secure = form.work.type_signature.result
    self._num_plain = len(flattening.leaf_types(plain))
    sums = [
        sum_
        for kind, result, bound in zip(
            (_BITWIDTH, _MAX_INPUT, _MODULUS),
            secure,
            (
                form.secure_sum_bitwidth,
                form.secure_sum_max_input,
                form.secure_modular_sum_modulus,
            ),
        )
        for sum_ in _secure_sums(kind, result, bound)
    ]
    self._work = workers_lib.Work(_graph(form.work), sums)
    self._prepare, self._zero, self._accumulate, self._report, self._update = (
        _graph(part).function()
        for part in (form.prepare, form.zero, form.accumulate, form.report, form.update)
    )

  def _as_round(self, comp):
    """`comp` as TFF wants it: from (state, clients' data) to (state, the rest).

    All that is on the server comes in as the state, which goes out as it is; all
    that `comp` returns is the rest.
    """
    def placed(placement):
      return tff.FederatedType(
          tff.StructType(
              [t.member for t in self._params if t.placement is placement]
          ),
          placement,
      )

    @tff.federated_computation(placed(tff.SERVER), placed(tff.CLIENTS))
    def as_round(state, data):
      rest = {
          tff.SERVER: (state[i] for i in range(len(state))),
          tff.CLIENTS: (data[i] for i in range(len(data))),
      }
      result = comp(*[next(rest[t.placement]) for t in self._params])
      if not isinstance(comp.type_signature.result, tff.FederatedType):
        result = tff.federated_zip(result)
      return state, result

    return as_round

  def __call__(self, workers: workers_lib.Workers, arg: Any) -> Any:
    args = [arg] if self._takes_one else values.members_of(arg, self._type.parameter)
    state, per_param = [], []
    for value, param in zip(args, self._params):
      if param.placement is tff.SERVER:
        state += values.leaves_of(value, param.member)
      elif param.all_equal:
        raise TypeError(f'A parameter of type {param} has no number of clients.')
      elif not isinstance(value, (list, tuple)):
        raise TypeError(
            f'Expected a list with each client\'s value of type {param.member}.'
            f' Found {type(value)}.'
        )
      else:
        leaves = []
        for client, own in enumerate(value):
          with batches.naming(client):
            leaves.append(values.leaves_of(own, param.member))
        per_param.append(leaves)
    if len({len(v) for v in per_param}) > 1:
      raise ValueError(
          'The clients\' arguments must be of one length. Found'
          f' {[len(v) for v in per_param]}.'
      )
    clients = [sum(leaves, []) for leaves in zip(*per_param)]
    state = [values.tensor_of(leaf) for leaf in state]
    plain = self._zero()
    sums = self._work.sums
    totals = [sum_.zero for sum_ in sums]
    job = workers_lib.Job(self._work, self._prepare(*state), clients)
    for _, results in workers.run(job):
      if self._num_plain:
        plain = self._accumulate(*plain, *results[: self._num_plain])
      totals = [
          sum_.add(total, value)
          for sum_, total, value in zip(sums, totals, results[self._num_plain :])
      ]
    with checks.sentence_first():
      outputs = self._update(*state, *self._report(*plain), *totals)
    return values.value_of(outputs[len(state) :], self._type.result)


_BITWIDTH, _MAX_INPUT, _MODULUS = 'bitwidth', 'max_input', 'modulus'


def _secure_sums(kind, result_type, bound_computation) -> list[batches.IntegerSum]:
  types = flattening.leaf_types(result_type)
  if not types:
    return []
  bounds = [b.numpy() for b in _graph(bound_computation).function()()]
  if len(bounds) == 1:  # One for all tensors.
    bounds *= len(types)
  max_input = {
      _BITWIDTH: lambda bound: 2 ** bound.astype(np.int64) - 1,
      _MAX_INPUT: lambda bound: bound,
      _MODULUS: lambda bound: bound - 1,
  }[kind]
  return [
      batches.IntegerSum(
          np.zeros(type_.shape, type_.dtype.type),
          max_input(bound),
          bound if kind == _MODULUS else None,
      )
      for type_, bound in zip(types, bounds)
  ]


def _graph(comp: tff.framework.ConcreteComputation) -> graphs.Graph:
  return _graph_of(tff.framework.serialize_computation(comp))


def _graph_of(proto) -> graphs.Graph:
  tensorflow = proto.tensorflow
  names = []
  if tensorflow.HasField('parameter'):
    names = _tensor_names(tensorflow.parameter)
  return graphs.Graph(
      tensorflow.graph_def.value,
      tuple(names),
      tuple(_tensor_names(tensorflow.result)),
      tensorflow.initialize_op,
  )


def _tensor_names(binding) -> list[str]:
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return [binding.tensor.tensor_name]
  if kind == 'sequence':
    return [binding.sequence.variant_tensor_name]
  if kind == 'struct':
    return [n for e in binding.struct.element for n in _tensor_names(e)]
  return []
