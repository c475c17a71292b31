"""Checks that a learning process releases nothing of clients but its aggregate."""

from typing import NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff


def check_nothing_else_leaves_clients(process, metrics):
  """Checks a learning process, and the metrics of one of its rounds."""
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  measured = {name for name, value in metrics.items() if tf.nest.flatten(value)}
  # The finalizer sees the aggregate alone.
  assert 'aggregator' in measured and measured <= {'aggregator', 'finalizer'}, measured


class Sums(NamedTuple):
  """What a computation adds up of clients.

  Attributes:
    plain: The types of tensors that are added outside of secure aggregation.
    reports: The number of secure sums of an aggregator's reports (`mechanism.round`).
    other: The names (None: no name) of what else is added securely.
  """

  plain: tuple[tff.Type, ...]
  reports: int
  other: tuple[Optional[str], ...]


def form_of(computation) -> tff.backends.mapreduce.MapReduceForm:
  """Returns the graphs of a `tff.Computation` with clients: `work` has what leaves a client."""
  parameters = list(computation.type_signature.parameter)

  def placed(placement):
    return tff.FederatedType(
        tff.StructType([t.member for t in parameters if t.placement is placement]), placement
    )

  @tff.federated_computation(placed(tff.SERVER), placed(tff.CLIENTS))
  def as_round(state, data):
    rest = {
        tff.SERVER: (state[i] for i in range(len(state))),
        tff.CLIENTS: (data[i] for i in range(len(data))),
    }
    result = computation(*[next(rest[t.placement]) for t in parameters])
    if not isinstance(computation.type_signature.result, tff.FederatedType):
      result = tff.federated_zip(result)
    return state, result

  return tff.backends.mapreduce.get_map_reduce_form_for_computation(as_round)


def sums_of_clients(computation) -> Sums:
  """Reads off TFF's compiled form what leaves clients in a `tff.Computation`."""
  plain, *secure = form_of(computation).work.type_signature.result
  names = []

  def read(type_, name):
    if isinstance(type_, tff.TensorType):
      names.append(name)
    else:
      for child_name, child in tff.structure.iter_elements(type_):
        read(child, child_name)

  for sums in secure:
    read(sums, None)
  reports = names.count('values')
  other = [name for name in names if name not in ('values', 'participants')]
  assert names.count('participants') == reports
  return Sums(tuple(tff.structure.flatten(plain)), reports, tuple(other))
