"""The process on a Ray cluster that runs clients.

It is sent there by value, so that it needs TensorFlow and Ray alone.
"""

from typing import Any

import numpy as np
import ray
import tensorflow as tf

from fedsmp_tff.runtime import graphs

OK, FAILED = 'ok', 'failed'


class Worker:
  """Runs clients one after the other, on the one device that it has."""

  def __init__(self, tensorflow_version: str, use_gpu: bool):
    """Initializes the worker.

    Args:
      tensorflow_version: The driver's, which this process must have too.
      use_gpu: Whether it has a GPU; if not, it leaves its machine's GPUs to other processes.

    Raises:
      RuntimeError: If this process has another TensorFlow, or sees no GPU.
    """
    if tf.__version__ != tensorflow_version:
      raise RuntimeError(
          f'A Ray node has TensorFlow {tf.__version__} where the driver has'
          f' {tensorflow_version}; install the same on all nodes.'
      )
    graphs.use_one_thread_an_operation()
    if not use_gpu:
      tf.config.set_visible_devices([], 'GPU')
    devices = tf.config.list_logical_devices('GPU' if use_gpu else 'CPU')
    if not devices:
      raise RuntimeError(
          'Ray gave a worker a GPU that its TensorFlow does not see; install'
          ' requirements-gpu.txt on all nodes, or run on processors.'
      )
    self._device = devices[0].name
    self._functions = {}
    self._round = None
    self._broadcast = None

  def run(
      self,
      work_key: int,
      work: list['ray.ObjectRef'],
      round_key: int,
      broadcast: list['ray.ObjectRef'],
      leaves: list[Any],
  ) -> tuple[str, Any]:
    """Runs one client.

    Args:
      work_key: Names what clients do; it is fetched once.
      work: Reference to its `graphs.Graph`.
      round_key: Names the round, whose broadcast is fetched once.
      broadcast: Reference to the arrays that the server broadcasts.
      leaves: The client's own: arrays, or references to datasets' graphs.

    Returns:
      `OK` and the arrays that come out, or `FAILED` and the class and message of
      TensorFlow's error (which can't be pickled itself).
    """
    try:
      with tf.device(self._device):
        if work_key not in self._functions:
          self._functions[work_key] = ray.get(work[0]).function()
        if self._round != round_key:
          self._broadcast = graphs.on_device(
              self._device, [tf.constant(a) for a in ray.get(broadcast[0])]
          )
          self._round = round_key
        own = [
            graphs.dataset_variant(ray.get(leaf))
            if isinstance(leaf, ray.ObjectRef)
            else tf.constant(leaf)
            for leaf in leaves
        ]
        results = self._functions[work_key](*own, *self._broadcast)
        return OK, [np.asarray(result.numpy()) for result in results]
    except tf.errors.OpError as error:
      return FAILED, (type(error), error.message)
