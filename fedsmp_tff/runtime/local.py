"""Clients in this process: threads beside one another, on processors or GPUs."""

from collections.abc import Iterator, Sequence
import concurrent.futures
import contextlib
import os
import queue
import threading
from typing import Optional
import warnings
import weakref

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff.runtime import batches
from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import map_reduce
from fedsmp_tff.runtime import values
from fedsmp_tff.runtime import workers as workers_lib


class LocalWorkers(workers_lib.Workers):
  """Threads, each with a device."""

  def __init__(self, devices: Sequence[str], num_workers: int):
    """Initializes the workers.

    Args:
      devices: TensorFlow's names of devices.
      num_workers: Clients that run at the same time, spread over the devices.
    """
    self._devices = list(devices)
    self._num_workers = num_workers
    self._pool = concurrent.futures.ThreadPoolExecutor(
        num_workers, thread_name_prefix='clients'
    )
    self._abandoned = False
    self._slots = queue.SimpleQueue()
    for slot in range(num_workers):
      self._slots.put(slot)
    # Of each work, one function a device, or a slot where they can't share it; gone
    # when the work is.
    self._functions = weakref.WeakKeyDictionary()
    self._making = threading.Lock()

  def run(self, job: workers_lib.Job) -> Iterator[workers_lib.Result]:
    """See `workers.Workers`."""
    broadcasts = {d: graphs.on_device(d, job.broadcast) for d in self._devices}
    # A batch would save no traffic here.
    cohort = workers_lib.Cohort(job)
    running = {}
    try:
      while cohort:
        # One waits for each that runs, so that no thread waits for this one.
        while len(running) < 2 * self._num_workers:
          batch = cohort.take()
          if batch is None:
            break
          running[self._pool.submit(self._run_batch, job, broadcasts, batch)] = batch
        done, _ = concurrent.futures.wait(
            running, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in done:
          batch = running.pop(future)
          yield from cohort.finish(workers_lib.Result(batch, future.result()))
    finally:
      # After an error or an interrupt, what runs is left to end by itself.
      for future in running:
        future.cancel()
      self._abandoned = bool(running)

  def _run_batch(self, job, broadcasts, positions) -> list[np.ndarray]:
    return batches.run(
        lambda leaves: self._run_client(job.work, broadcasts, leaves),
        [job.clients[p] for p in positions],
        positions,
        job.work.sums,
    )

  def _run_client(self, work, broadcasts, leaves) -> list[np.ndarray]:
    slot = self._slots.get()
    try:
      device = self._devices[slot % len(self._devices)]
      with tf.device(device):
        own = map(values.tensor_of, leaves)
        function = self._function(work, slot if work.has_resources else device)
        results = function(*own, *broadcasts[device])
        return [result.numpy() for result in results]
    finally:
      self._slots.put(slot)

  def _function(self, work, key):
    with self._making:
      functions = self._functions.setdefault(work, {})
      if key not in functions:
        functions[key] = _Function(work.graph)
      return functions[key]

  def close(self) -> None:
    # Python waits for threads that still run when it ends; who abandoned a round
    # in haste can leave by `os._exit`.
    self._pool.shutdown(wait=not self._abandoned)


class _Function:
  """A graph's function; one thread at a time until it has been called once.

  TensorFlow optimizes it in its first call, and once more in each call beside that one.
  """

  def __init__(self, graph: graphs.Graph):
    self._function = graph.function()
    self._first = threading.Lock()
    self._optimized = False

  def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
    if not self._optimized:
      with self._first:
        if not self._optimized:
          results = self._function(*tensors)
          self._optimized = True
          return results
    return self._function(*tensors)


def default_devices() -> list[str]:
  """All GPUs, or the processor if there is none."""
  gpus = [device.name for device in tf.config.list_logical_devices('GPU')]
  return gpus or [tf.config.list_logical_devices('CPU')[0].name]


def _create(
    devices: Optional[Sequence[str]], workers: Optional[int]
) -> map_reduce.MapReduceContext:
  if not graphs.use_one_thread_an_operation():
    warnings.warn(
        'TensorFlow had started before the local context was made, with several'
        ' threads an operation: rounds are slower, and results depend on the number'
        ' of processors in their last bits. Make the context first.',
        stacklevel=4,
    )
  known = {
      d.name.removeprefix('/device:'): d.name for d in tf.config.list_logical_devices()
  }
  names = default_devices() if devices is None else []
  for device in devices or ():
    name = device.removeprefix('/').removeprefix('device:').upper()
    if name not in known:
      raise ValueError(
          f'`devices` has {device!r}, which TensorFlow does not see here; it sees'
          f' {", ".join(known)}.'
      )
    names.append(known[name])
  if devices is not None and not names:
    raise ValueError('`devices` is empty; name one, such as CPU:0, or give None.')
  if workers is None:
    on_cpu = any('CPU' in name for name in names)
    workers = len(os.sched_getaffinity(0)) if on_cpu else len(names)
  if workers < 1:
    raise ValueError(f'`workers` must be at least 1. Found {workers}.')
  return map_reduce.MapReduceContext(LocalWorkers(names, workers))


def set_local_context(
    devices: Optional[Sequence[str]] = None, workers: Optional[int] = None
) -> None:
  """Makes this process the context of every computation from here on.

  Clients run in threads, one TensorFlow thread an operation, from which results do
  not depend: two runs of one seeded process are equal bit for bit, whatever
  `workers` is. Secure aggregation is SIMULATED: sums are plain, with range checks.

  Args:
    devices: TensorFlow's names, such as `GPU:0`; None: all GPUs, or the processor
      where there is none.
    workers: Clients that run at the same time, spread over the devices; None: one a
      GPU, or one a processor.

  Raises:
    ValueError: If there is no such device, or `workers` is below 1.
  """
  tff.framework.set_default_context(_create(devices, workers))


@contextlib.contextmanager
def local_context(
    devices: Optional[Sequence[str]] = None, workers: Optional[int] = None
) -> Iterator[map_reduce.MapReduceContext]:
  """As `set_local_context`, for a `with` block.

  Args:
    devices: See `set_local_context`.
    workers: See `set_local_context`.

  Yields:
    The context.

  Raises:
    ValueError: See `set_local_context`.
  """
  context = _create(devices, workers)
  try:
    with tff.framework.get_context_stack().install(context):
      yield context
  finally:
    context.close()
