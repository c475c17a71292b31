"""Runs clients in this process, in parallel threads on CPU cores or GPUs."""

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

from fedsmp_tff import errors
from fedsmp_tff.runtime import batches
from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import map_reduce
from fedsmp_tff.runtime import values
from fedsmp_tff.runtime import workers as workers_lib


class LocalWorkers(workers_lib.Workers):
  """Runs clients in threads, each with a device."""

  def __init__(self, devices: Sequence[str], num_workers: int):
    """Initializes the workers.

    Args:
      devices: TensorFlow's names of devices.
      num_workers: Number of clients that run at the same time, spread over the devices.
    """
    self._devices = list(devices)
    self._num_workers = num_workers
    self._pool = concurrent.futures.ThreadPoolExecutor(num_workers, thread_name_prefix='clients')
    self._abandoned = False
    self._slots = queue.SimpleQueue()
    for slot in range(num_workers):
      self._slots.put(slot)
    # The functions of each work: one per device, or one per slot if they have resources.
    self._functions = weakref.WeakKeyDictionary()
    self._making = threading.Lock()

  def run(self, job: workers_lib.Job) -> Iterator[workers_lib.Result]:
    """See `workers.Workers`."""
    broadcasts = {d: graphs.on_device(d, job.broadcast) for d in self._devices}
    cohort = workers_lib.Cohort(job, max_batch=graphs.GROUP)
    running = {}
    self._abandoned = True  # Until no client runs: an interrupt can come between any two lines.
    try:
      while cohort:
        # As many batches wait as run, so that no thread waits for the main thread.
        while len(running) < 2 * self._num_workers:
          # Large batches let short clients run in groups; small ones let longer clients end evenly.
          num_workers = 1 if self._is_short(job.work) else self._num_workers
          if (batch := cohort.take(num_workers)) is None:
            break
          running[self._pool.submit(self._run_batch, job, broadcasts, batch)] = batch
        done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
          yield from cohort.finish(workers_lib.Result(running.pop(future), future.result()))
      self._abandoned = False
    finally:
      # After an error or an interrupt, running clients end by themselves.
      for future in running:
        future.cancel()

  def _run_batch(self, job, broadcasts, positions) -> list[np.ndarray]:
    slot = self._slots.get()
    try:
      device = self._devices[slot % len(self._devices)]
      with tf.device(device):
        function = self._function(job.work, slot if job.work.has_resources else device)
        clients = [[values.tensor_of(leaf) for leaf in job.clients[p]] for p in positions]
        results = function.results(clients, broadcasts[device])
        return batches.run(results, positions, job.work.sums)
    finally:
      self._slots.put(slot)

  def _function(self, work, key) -> graphs.ClientsFunction:
    with self._making:
      functions = self._functions.setdefault(work, {})
      if key not in functions:
        functions[key] = graphs.ClientsFunction(work.graph)
      return functions[key]

  def _is_short(self, work) -> bool:
    with self._making:
      return any(function.is_short for function in self._functions.get(work, {}).values())

  def close(self) -> None:
    # Python waits for running threads when it ends; after an abandoned round, use `os._exit`.
    self._pool.shutdown(wait=not self._abandoned)


def _create(
    devices: Optional[Sequence[str]], workers: Optional[int]
) -> map_reduce.MapReduceContext:
  if not graphs.use_one_thread_per_op():
    warnings.warn(
        'TensorFlow had started before the local context was made, with several threads per'
        ' operation: rounds are slower, and the last bits of results depend on the number of CPU'
        ' cores. Make the context first.',
        stacklevel=4,
    )
  names = _device_names(devices)
  if workers is None:
    on_cpu = any('CPU' in name for name in names)
    workers = len(os.sched_getaffinity(0)) if on_cpu else len(names)
  errors.check_positive('workers', workers)
  return map_reduce.MapReduceContext(LocalWorkers(names, workers))


def _device_names(devices: Optional[Sequence[str]]) -> list[str]:
  """Returns TensorFlow's full names of `devices`; see `set_local_context`."""
  visible = {d.name.removeprefix('/device:'): d.name for d in tf.config.list_logical_devices()}
  if devices is None:
    gpus = [full for name, full in visible.items() if name.startswith('GPU')]
    return gpus or [visible['CPU:0']]
  if not devices:
    raise errors.ArgumentError('devices', 'is empty. Name a device, such as CPU:0, or pass None.')
  names = [d.removeprefix('/').removeprefix('device:').upper() for d in devices]
  for device, name in zip(devices, names):
    if name not in visible:
      raise errors.ArgumentError(
          'devices',
          f'has {device!r}, which TensorFlow does not see. Use one or more of {", ".join(visible)}.',
      )
  return [visible[name] for name in names]


def set_local_context(
    devices: Optional[Sequence[str]] = None, workers: Optional[int] = None
) -> None:
  """Runs every later computation in this process.

  Clients run in threads, and each TensorFlow operation on one thread, so that results do not
  depend on `workers`: two runs of one seeded process are equal bit for bit, if this call precedes
  all work of TensorFlow (else a warning) and the model draws no random numbers of its own, as
  dropout does (see `build_fed_smp`). Secure aggregation is SIMULATED: sums are plain, with range
  checks.

  Args:
    devices: TensorFlow's names, such as `GPU:0`; None: all GPUs, or the CPU if there is none.
    workers: Number of clients that run at the same time, spread over the devices; None: one per
      GPU, or one per CPU core.

  Raises:
    ValueError: If there is no such device, or `workers` is below 1.
  """
  tff.framework.set_default_context(_create(devices, workers))


@contextlib.contextmanager
def local_context(
    devices: Optional[Sequence[str]] = None, workers: Optional[int] = None
) -> Iterator[map_reduce.MapReduceContext]:
  """Yields a context for a `with` block; for arguments and errors see `set_local_context`."""
  context = _create(devices, workers)
  try:
    with tff.framework.get_context_stack().install(context):
      yield context
  finally:
    context.close()
