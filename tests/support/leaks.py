"""Checks that a learning process releases nothing of clients but its aggregate."""

import tensorflow as tf
import tensorflow_federated as tff


def check_nothing_else_leaves_clients(process, metrics):
  """Checks a process, and the metrics of one of its rounds.

  Args:
    process: A learning process.
    metrics: `metrics` of an output of its `next`.
  """
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  measured = {name for name, value in metrics.items() if tf.nest.flatten(value)}
  # The finalizer sees the aggregate alone.
  assert 'aggregator' in measured and measured <= {'aggregator', 'finalizer'}, measured
