"""A TFF context that runs rounds as TensorFlow graphs: the server's here, the clients' anywhere.

TFF compiles a round to `tff.backends.mapreduce.MapReduceForm`: plain TensorFlow graphs for the
first part of the server (`prepare`), a client (`work`), the sums of results (`zero`, `accumulate`,
`report`, and secure sums of integers), and the last part of the server (`update`). This module
runs them; a `Workers` runs the clients' graph.
"""

from collections.abc import Callable, Iterator
import contextlib
from typing import Any
import weakref

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import errors
from fedsmp_tff.runtime import batches
from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import values
from fedsmp_tff.runtime import workers as workers_lib

# TensorFlow optimizes graphs when it runs them; earlier, this costs time and can undo its choices
# of kernels by device.
_NO_GRAPPLER = tf.compat.v1.ConfigProto()
_NO_GRAPPLER.graph_options.rewrite_options.disable_meta_optimizer = True


class NoMapReduceFormError(TypeError):
  """The computation can't run in this context."""


class CheckFailedError(errors.Error, tf.errors.InvalidArgumentError):
  """A check on the server failed; the text is its sentence, without the graph's traceback."""

  def __init__(self, sentence: str):
    tf.errors.InvalidArgumentError.__init__(self, None, None, sentence)


class MapReduceContext(tff.program.FederatedContext):
  """Runs computations whose clients' part is one graph, as in a federated learning round.

  These are: `tff.tensorflow.computation`s; computations on the server; and those that broadcast,
  map clients, aggregate, securely or not, and end on the server, in this order, each part optional.
  Secure aggregation is SIMULATED: the sums are plain, with the range checks of TFF's own test
  runtime. Programs (`tff.learning.programs.train_model`) run, too: `invoke` returns values.
  """

  def __init__(self, workers: workers_lib.Workers):
    """Initializes the context; `workers` run the clients, and `close` closes them."""
    self._workers = workers
    self._compiled = {}

  def close(self) -> None:
    self._workers.close()

  def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
    """Runs a computation; see `tff.framework.SyncContext`.

    Raises:
      CheckFailedError: If a check on the server fails.
      NoMapReduceFormError: If this context can't run it; names a context that can.
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


@contextlib.contextmanager
def explain_default_context() -> Iterator[None]:
  """Raises RuntimeError with the remedy if the block runs a round in TFF's default context."""
  try:
    yield
  except grpc.RpcError as error:
    if 'Cannot embed a federated value' not in str(error):
      raise
    raise RuntimeError(
        "TFF's default context has no secure sums. Call `fedsmp_tff.runtime.set_local_context()`,"
        ' or another of `fedsmp_tff.runtime`, before anything runs.'
    ) from error


@contextlib.contextmanager
def _sentence_of_failed_check() -> Iterator[None]:
  """Raises `CheckFailedError` if a check of the server fails in the block."""
  try:
    yield
  except tf.errors.InvalidArgumentError as error:
    sentence = errors.failed_check(error)
    if sentence is None:
      raise
    raise CheckFailedError(sentence) from error


def _compile(
    comp: tff.framework.ConcreteComputation,
) -> Callable[[workers_lib.Workers, Any], Any]:
  has_clients = tff.types.contains(
      comp.type_signature,
      lambda t: isinstance(t, tff.FederatedType) and t.placement is tff.CLIENTS,
  )
  try:
    return _Round(comp) if has_clients else _Local(comp)
  except Exception as error:  # TFF's compiler raises many kinds.
    raise NoMapReduceFormError(
        f'The computation of type {comp.type_signature.compact_representation()} has no'
        f' MapReduceForm ({type(error).__name__}: {error}), which this context needs.'
        " Run it in TFF's own, `tff.backends.test.create_sync_test_cpp_execution_context()`."
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
    if not tff.types.is_structure_of_tensors(values.without_placement(self._type.result)):
      raise TypeError(f'its result is of type {self._type.result}')
    self._function = _graph_of(proto).function()

  def __call__(self, unused_workers: workers_lib.Workers, arg: Any) -> Any:
    leaves = []
    if self._type.parameter is not None:
      leaves = values.leaves_of(arg, values.without_placement(self._type.parameter))
    with _sentence_of_failed_check():
      outputs = self._function(*map(values.tensor_of, leaves))
    return values.value_of(outputs, self._type.result)


class _Round:
  """A computation with clients, as the graphs of its `MapReduceForm`."""

  def __init__(self, comp: tff.framework.ConcreteComputation):
    self._type = comp.type_signature
    self._is_unary = isinstance(self._type.parameter, tff.FederatedType)
    self._params = [self._type.parameter] if self._is_unary else list(self._type.parameter)
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
        self._as_round(comp), _NO_GRAPPLER
    )
    plain, *secure = form.work.type_signature.result
    self._num_plain = len(tff.structure.flatten(plain))
    bounds = form.secure_sum_bitwidth, form.secure_sum_max_input, form.secure_modular_sum_modulus
    self._sums = [
        sum_
        for make, result_type, bound in zip(_SECURE_SUMS, secure, bounds)
        for sum_ in _secure_sums(make, result_type, bound)
    ]
    self._work = workers_lib.Work(_graph(form.work), self._sums)
    self._prepare, self._zero, self._accumulate, self._report, self._update = (
        _graph(part).function()
        for part in (form.prepare, form.zero, form.accumulate, form.report, form.update)
    )

  def _as_round(self, comp):
    """Returns `comp` in TFF's form: from (state, clients' data) to (state, result).

    The state is all server arguments, and is unchanged.
    """
    def placed(placement):
      members = [t.member for t in self._params if t.placement is placement]
      return tff.FederatedType(tff.StructType(members), placement)

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
    state, clients = self._leaves(arg)
    plain = self._zero()
    totals = [sum_.zero for sum_ in self._sums]
    job = workers_lib.Job(self._work, self._prepare(*state), clients)
    for _, results in workers.run(job):
      if self._num_plain:
        plain = self._accumulate(*plain, *results[: self._num_plain])
      totals = [
          sum_.add(total, value)
          for sum_, total, value in zip(self._sums, totals, results[self._num_plain :])
      ]
    with _sentence_of_failed_check():
      outputs = self._update(*state, *self._report(*plain), *totals)
    return values.value_of(outputs[len(state) :], self._type.result)

  def _leaves(self, arg: Any) -> tuple[list[tf.Tensor], list[list[values.Leaf]]]:
    """Returns the server's tensors, and each client's leaves."""
    args = [arg] if self._is_unary else values.members_of(arg, self._type.parameter)
    state, per_param = [], []
    for value, param in zip(args, self._params):
      if param.placement is tff.SERVER:
        state += values.leaves_of(value, param.member)
      elif param.all_equal:
        raise TypeError(f'A parameter of type {param} does not give a number of clients.')
      elif not isinstance(value, (list, tuple)):
        raise TypeError(
            f"Expected a list with each client's value of type {param.member}. Found {type(value)}."
        )
      else:
        leaves = []
        for client, member in enumerate(value):
          with batches.naming(client):
            leaves.append(values.leaves_of(member, param.member))
        per_param.append(leaves)
    lengths = [len(leaves) for leaves in per_param]
    if len(set(lengths)) > 1:
      raise ValueError(f"The clients' arguments must have equal lengths. Found {lengths}.")
    clients = [sum(leaves, []) for leaves in zip(*per_param)]
    return [values.tensor_of(leaf) for leaf in state], clients


# From zeros and the bound that `MapReduceForm` declares: bit width, maximum, modulus.
_SECURE_SUMS = (
    lambda zero, bitwidth: batches.IntegerSum(zero, 2 ** bitwidth.astype(np.int64) - 1),
    batches.IntegerSum,
    lambda zero, modulus: batches.IntegerSum(zero, modulus - 1, modulus),
)


def _secure_sums(make, result_type, bound_computation) -> list[batches.IntegerSum]:
  types = tff.structure.flatten(result_type)
  if not types:
    return []
  bounds = [bound.numpy() for bound in _graph(bound_computation).function()()]
  if len(bounds) == 1:  # A single bound is for all tensors.
    bounds *= len(types)
  return [make(np.zeros(t.shape, t.dtype.type), bound) for t, bound in zip(types, bounds)]


def _graph(comp: tff.framework.ConcreteComputation) -> graphs.Graph:
  return _graph_of(tff.framework.serialize_computation(comp))


def _graph_of(proto) -> graphs.Graph:
  tensorflow = proto.tensorflow
  return graphs.Graph(
      tensorflow.graph_def.value,
      tuple(_tensor_names(tensorflow.parameter)),
      tuple(_tensor_names(tensorflow.result)),
      tensorflow.initialize_op,
  )


def _tensor_names(binding) -> list[str]:
  """Returns the names of a binding's tensors; none if it is unset."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return [binding.tensor.tensor_name]
  if kind == 'sequence':
    return [binding.sequence.variant_tensor_name]
  if kind == 'struct':
    return [name for element in binding.struct.element for name in _tensor_names(element)]
  return []
