"""Clients on a Ray cluster: an actor for each processor or GPU that Ray gives."""

from collections.abc import Iterator
import contextlib
import dataclasses
import itertools
import math
import os
import pickle
import signal
import socket
import time
from typing import Any, Optional
import weakref

import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff.runtime import batches
from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import map_reduce
from fedsmp_tff.runtime import values
from fedsmp_tff.runtime import workers as workers_lib

# A client that ended this many workers would end all of them.
_MAX_LOSSES = 3
# Starting an actor includes the import of TensorFlow, on a busy machine.
_SECONDS_WITHOUT_WORKER = 300
_MAX_FAILED_STARTS = 3
_SECONDS_TO_CONNECT = 10
_SECONDS_BETWEEN_CHECKS = 5.0
# A dataset up to this size goes with each call. Each reference costs this process 0.5 ms, as
# Ray counts who has it; without them a tiny client of two datasets takes 0.2 ms, not 1.2.
_MAX_SENT_BYTES = 2**16


class WorkersLostError(RuntimeError):
  """No Ray worker is left, or a client ends each worker that runs it."""


@dataclasses.dataclass
class _Call:
  """A batch on its way through a worker."""

  actor: Any
  batch: range
  timeout: float
  deadline: float


class RayWorkers(workers_lib.Workers):
  """Actors, each with one batch at a time; one that is lost is replaced.

  Ray does not restart an actor or repeat a call by itself here (`max_restarts` and
  `max_task_retries` are 0): a call that failed may have run, and only this class
  knows whether its batch was counted.
  """

  def __init__(
      self,
      num_workers: Optional[int],
      use_gpus: Optional[bool],
      client_timeout: float,
      max_batch: int,
      environment: dict[str, str],
  ):
    """Initializes the workers; Ray must have been initialized.

    Args:
      num_workers: Number of workers; None: one for each GPU, or else processor, of the
        cluster, as it grows and shrinks.
      use_gpus: Whether each worker has a GPU; None: if the cluster has any.
      client_timeout: Seconds that one client may take.
      max_batch: Clients whose integers a worker adds before it sends them, at most.
      environment: Environment variables of workers, set before TensorFlow starts.
    """
    import ray  # pylint: disable=g-import-not-at-top

    from fedsmp_tff.runtime import ray_worker  # pylint: disable=g-import-not-at-top

    self._ray = ray
    self._ok = ray_worker.OK
    self._num_workers = num_workers
    if use_gpus is None:
      use_gpus = ray.cluster_resources().get('GPU', 0) > 0
    self._use_gpus = use_gpus
    self._client_timeout = client_timeout
    self._max_batch = max_batch
    # By value: the nodes need not have this package, and can't have another one.
    for module in (batches, graphs, ray_worker):
      ray.cloudpickle.register_pickle_by_value(module)
    self._actor_class = ray.remote(
        num_cpus=0 if use_gpus else 1,
        num_gpus=1 if use_gpus else 0,
        max_restarts=0,
        max_task_retries=0,
    )(_actor_class())
    self._actor_arguments = (
        environment,
        ray.cloudpickle.dumps(ray_worker.Worker),
        (tf.__version__, use_gpus),
    )
    # Actors by the reference that is ready when they are; and those without a batch.
    self._starting = {}
    self._free = []
    self._failed_starts = 0
    self._keys = itertools.count()
    self._works = weakref.WeakKeyDictionary()
    self._datasets = weakref.WeakKeyDictionary()

  def run(self, job: workers_lib.Job) -> Iterator[workers_lib.Result]:
    """See `workers.Workers`.

    Raises:
      WorkersLostError: If no worker is left and none can be started, or one batch
        ended several.
    """
    work = job.work
    if work not in self._works:
      self._works[work] = next(self._keys), [self._ray.put((work.graph, work.sums))]
    broadcast = [self._ray.put([t.numpy() for t in job.broadcast])]
    common = *self._works[work], next(self._keys), broadcast
    cohort = workers_lib.Cohort(job, self._max_batch)
    calls = {}
    try:
      while cohort:
        wanted = self._start_actors(len(calls))
        while self._free and (batch := cohort.take(wanted)) is not None:
          self._hand_out(batch, calls, common, job)
        yield from self._collect(cohort, calls)
    finally:
      # A client that still runs when the round fails would delay the next round.
      for call in calls.values():
        self._ray.kill(call.actor)

  def _start_actors(self, num_busy: int) -> int:
    """Asks for as many workers as are missing, and returns how many there should be.

    Ray starts them when it has room.
    """
    wanted = self._num_workers
    if wanted is None:
      resources = self._ray.cluster_resources()
      wanted = int(resources.get('GPU' if self._use_gpus else 'CPU', 0))
    missing = wanted - num_busy - len(self._free) - len(self._starting)
    for _ in range(max(missing, 0)):
      actor = self._actor_class.remote(*self._actor_arguments)
      self._starting[actor.ready.remote()] = actor
    return max(wanted, 1)

  def _hand_out(self, batch, calls, common, job) -> None:
    actor = self._free.pop()
    clients = [[self._sent(leaf) for leaf in job.clients[p]] for p in batch]
    reference = actor.run.remote(*common, batch, clients)
    timeout = self._client_timeout * len(clients)
    calls[reference] = _Call(actor, batch, timeout, time.monotonic() + timeout)

  def _collect(self, cohort, calls) -> Iterator[workers_lib.Result]:
    """Waits for something to happen to a worker, and deals with it."""
    now = time.monotonic()
    timeout = min(
        [_SECONDS_BETWEEN_CHECKS, *(c.deadline - now for c in calls.values())]
    )
    if not calls and not self._free:
      self._wait_for_a_worker()
      return
    ready, _ = self._ray.wait(
        [*calls, *self._starting], num_returns=1, timeout=max(timeout, 0.0)
    )
    for reference in ready:
      if reference in self._starting:
        self._started(reference)
        continue
      call = calls.pop(reference)
      try:
        outcome, results = self._ray.get(reference)
      except self._ray.exceptions.RayTaskError:
        raise  # The client's own error: elsewhere it would be the same.
      except self._ray.exceptions.RayError as error:
        # The actor or its node died, or the node that stored the result.
        self._ray.kill(call.actor)
        self._lost(cohort, call, str(error))
        continue
      self._free.append(call.actor)
      if outcome != self._ok:
        error_class, arguments, notes = results
        error = error_class(*arguments)
        for note in notes:
          error.add_note(note)
        raise error
      yield from cohort.finish(workers_lib.Result(call.batch, results))
    now = time.monotonic()
    for reference in [r for r, c in calls.items() if c.deadline <= now]:
      call = calls.pop(reference)
      self._ray.kill(call.actor)
      self._lost(
          cohort, call, f'no answer within {call.timeout:g} s, which is'
          f' client_timeout={self._client_timeout:g} s a client'
      )

  def _wait_for_a_worker(self) -> None:
    """Waits until one has started.

    Raises:
      WorkersLostError: If none does.
    """
    ready = []
    if self._starting:  # Not so where the cluster has no processor or GPU at all.
      ready, _ = self._ray.wait(
          list(self._starting), num_returns=1, timeout=_SECONDS_WITHOUT_WORKER
      )
    if not ready:
      raise WorkersLostError(
          'No Ray worker is left, and none could be started within'
          f' {_SECONDS_WITHOUT_WORKER} s: the cluster has'
          f' {self._ray.cluster_resources()}, of which'
          f' {self._ray.available_resources()} is free. Add nodes, or ask for'
          ' fewer workers.'
      )
    self._started(ready[0])

  def _started(self, reference) -> None:
    actor = self._starting.pop(reference)
    try:
      self._ray.get(reference)
    except self._ray.exceptions.RayError as error:
      self._failed_starts += 1
      if self._failed_starts >= _MAX_FAILED_STARTS:
        raise WorkersLostError(
            f'{self._failed_starts} Ray workers failed to start. The last one: {error}'
        ) from None
    else:
      self._failed_starts = 0
      self._free.append(actor)

  def _lost(self, cohort, call, reason) -> None:
    losses = cohort.lose(call.batch)
    if losses >= _MAX_LOSSES:
      clients = f'Client {call.batch[0]}'
      if len(call.batch) > 1:
        clients += f', or one of those up to {call.batch[-1]},'
      raise WorkersLostError(
          f'{clients} of the round was lost with {losses} Ray workers, one'
          f' after the other; the last one: {reason}. Look at its data, at the'
          " nodes' memory, and at the limit of time for a client."
      )

  def _sent(self, leaf: values.Leaf) -> Any:
    """A leaf as it goes to a worker: a dataset as a tuple of its graph or a reference to it."""
    if not isinstance(leaf, tf.data.Dataset):
      return leaf.numpy()
    if leaf not in self._datasets:
      graph = graphs.dataset_graph(leaf)
      # Large ones are sent once for all rounds.
      is_small = len(graph) <= _MAX_SENT_BYTES
      self._datasets[leaf] = (graph if is_small else self._ray.put(graph),)
    return self._datasets[leaf]

  def close(self) -> None:
    for actor in [*self._free, *self._starting.values()]:
      self._ray.kill(actor)
    self._free, self._starting = [], {}


def _actor_class() -> type:
  """The actor: it sets the environment, and only then imports TensorFlow."""

  class Actor:

    def __init__(self, environment, worker_class, arguments):
      os.environ.update(environment)
      self._worker = pickle.loads(worker_class)(*arguments)

    def ready(self):
      return True

    def run(self, *arguments):
      return self._worker.run(*arguments)

  # Defined here, it is sent by value too.
  return Actor


def _check_reachable(address: str) -> None:
  """Raises `ConnectionError` if nobody answers; Ray would try for many minutes."""
  host, _, port = address.rpartition(':')
  if not port.isdigit():  # 'auto', for which Ray knows the answer at once.
    return
  try:
    socket.create_connection((host, int(port)), _SECONDS_TO_CONNECT).close()
  except OSError as error:
    raise ConnectionError(f'no Ray cluster answers at {address} ({error})') from None


@contextlib.contextmanager
def ray_context(
    address: Optional[str] = None,
    workers: Optional[int] = None,
    *,
    use_gpus: Optional[bool] = None,
    client_timeout: float = 600.0,
    max_batch: int = 64,
) -> Iterator[map_reduce.MapReduceContext]:
  """Runs the computations of a `with` block with clients on a Ray cluster.

  The server's part runs in this process. A worker that is lost, or takes longer than
  `client_timeout`, is replaced, and its clients run again elsewhere; each client is
  counted once. The result does not depend on how many workers there are, which are lost, or on
  `max_batch`. Secure aggregation is SIMULATED: workers and this process see clients' integers.

  Args:
    address: The address of the cluster, as `ray.init` takes it ('auto' for the one that
      runs on this machine); None: a cluster on this machine for this block.
    workers: Number of workers; None: one for each GPU of the cluster, or else processor.
    use_gpus: Whether each worker has a GPU; None: if the cluster has any.
    client_timeout: Seconds that one client may take, the first of a worker
      including the building of its graph.
    max_batch: Clients, at most, whose integers a worker adds before it sends one sum to this
      process. It adds fewer when fewer are left, and none where clients send floats.

  Yields:
    The context.

  Raises:
    ImportError: If Ray is not installed.
    ConnectionError: If there is no cluster at `address`.
    ValueError: If a number is out of its range.
  """
  if workers is not None and workers < 1:
    raise ValueError(f'`workers` must be at least 1. Found {workers}.')
  if max_batch < 1:
    raise ValueError(f'`max_batch` must be at least 1. Found {max_batch}.')
  if not 0 < client_timeout < math.inf:
    raise ValueError(
        f'`client_timeout` must be positive and finite. Found {client_timeout}.'
    )
  # Ray's future default; without it, it warns of the change.
  os.environ.setdefault('RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO', '0')
  import ray  # pylint: disable=g-import-not-at-top

  graphs.use_one_thread_an_operation()
  options = {'address': address or 'local'}
  if address is None:
    os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
    # Without a dashboard, of which Ray's C++ would complain on this process's stderr.
    os.environ.setdefault('RAY_BACKEND_LOG_LEVEL', 'fatal')
    options |= {
        'num_cpus': workers or len(os.sched_getaffinity(0)),
        'include_dashboard': False,
        # Nobody else needs to reach a cluster of this machine alone.
        '_node_ip_address': '127.0.0.1',
    }
  else:
    _check_reachable(address)
  handler = signal.getsignal(signal.SIGTERM)
  ray.init(**options, log_to_driver=False, logging_level='ERROR')
  if callable(handler) and signal.getsignal(signal.SIGTERM) is not handler:
    # The program's own: Ray's would end a round that the program lets end.
    signal.signal(signal.SIGTERM, handler)
  try:
    environment = {
        name: value for name, value in os.environ.items() if name.startswith('TF_')
    }
    context = map_reduce.MapReduceContext(
        RayWorkers(workers, use_gpus, client_timeout, max_batch, environment)
    )
    try:
      with tff.framework.get_context_stack().install(context):
        yield context
    finally:
      context.close()
  finally:
    ray.shutdown()
