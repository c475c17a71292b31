"""`no_client_metrics`: a metrics aggregator that releases nothing, for stock TFF processes.

By default the processes of `tff.learning.algorithms` add each client's training loss and numbers of
examples and batches in an insecure sum without noise: exact functions of clients' data, which no
epsilon covers. The sums of TFF's `secure_sum_then_finalize` are exact too, and not covered either.
"""

import collections
from typing import Any

import tensorflow_federated as tff


def no_client_metrics(
    metric_finalizers: Any, local_unfinalized_metrics_type: Any = None
) -> tff.Computation:
  """Aggregates clients' metrics to nothing, for `metrics_aggregator=` of stock processes.

  Args:
    metric_finalizers: Not used: there is nothing to finalize.
    local_unfinalized_metrics_type: Not used.

  Returns:
    A computation that maps any metrics at clients to an empty `OrderedDict` at the server.
  """
  del metric_finalizers, local_unfinalized_metrics_type

  @tff.federated_computation
  def aggregate(client_metrics):
    del client_metrics  # They never leave the clients.
    return tff.federated_value(collections.OrderedDict(), tff.SERVER)

  return aggregate
