"""Runs clients in a process of a Ray cluster.

The driver sends this module by value, so that a node needs only TensorFlow and Ray.
"""

from typing import Any

import ray
import tensorflow as tf

from fedsmp_tff.runtime import batches
from fedsmp_tff.runtime import graphs

OK, FAILED = 'ok', 'failed'


class Worker:
  """Runs clients one after the other, on its single device."""

  def __init__(self, tensorflow_version: str, use_gpu: bool):
    """Initializes the worker.

    Args:
      tensorflow_version: The driver's version, which this process must have too.
      use_gpu: Whether it has a GPU; if not, it leaves its machine's GPUs to other processes.

    Raises:
      RuntimeError: If this process has another TensorFlow, or sees no GPU.
    """
    if tf.__version__ != tensorflow_version:
      raise RuntimeError(
          f'A Ray node has TensorFlow {tf.__version__}, but the driver has {tensorflow_version}.'
          ' Install the same version on all nodes.'
      )
    graphs.use_one_thread_per_op()
    if not use_gpu:
      tf.config.set_visible_devices([], 'GPU')
    devices = tf.config.list_logical_devices('GPU' if use_gpu else 'CPU')
    if not devices:
      raise RuntimeError(
          'Ray gave a worker a GPU that its TensorFlow does not see. Install'
          ' requirements-gpu.txt on all nodes, or run on CPUs.'
      )
    self._device = devices[0].name
    self._works = {}  # From the key of a work to its function and its sums.
    self._round, self._broadcast = None, []  # The key of the round, and its broadcast tensors.

  def run(
      self,
      work_key: int,
      work: list['ray.ObjectRef'],
      round_key: int,
      broadcast: list['ray.ObjectRef'],
      positions: range,
      clients: list[list[Any]],
  ) -> tuple[str, Any]:
    """Runs a batch of clients.

    Args:
      work_key: Key of the work, which is fetched once.
      work: Reference to its `graphs.Graph` and its sums.
      round_key: Key of the round, whose broadcast is fetched once.
      broadcast: Reference to the arrays that the server broadcasts.
      positions: The positions of the clients in the round.
      clients: The leaves of each client: arrays, and for a dataset a tuple of its graph or of a
        reference to it.

    Returns:
      `OK` and the batch's results, or `FAILED` and an error's class (pickle does not take
      TensorFlow's errors), arguments and notes.
    """
    try:
      with tf.device(self._device):
        if work_key not in self._works:
          graph, sums = ray.get(work[0])
          self._works[work_key] = graphs.ClientsFunction(graph), sums
        function, sums = self._works[work_key]
        if self._round != round_key:
          self._broadcast = graphs.on_device(
              self._device, [tf.constant(a) for a in ray.get(broadcast[0])]
          )
          self._round = round_key

        tensors = [[_tensor_of(leaf) for leaf in leaves] for leaves in clients]
        return OK, batches.run(function.results(tensors, self._broadcast), positions, sums)
    except tf.errors.OpError as error:
      arguments = None, None, error.message
      return FAILED, (type(error), arguments, getattr(error, '__notes__', []))
    except ValueError as error:
      return FAILED, (ValueError, (str(error),), getattr(error, '__notes__', []))


def _tensor_of(leaf: Any) -> tf.Tensor:
  if not isinstance(leaf, tuple):
    return tf.constant(leaf)
  (graph,) = leaf
  graph = ray.get(graph) if isinstance(graph, ray.ObjectRef) else graph
  return tf.raw_ops.DatasetFromGraph(graph_def=graph)
