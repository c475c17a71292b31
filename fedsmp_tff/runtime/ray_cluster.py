"""Runs clients on a Ray cluster, in an actor per CPU core or GPU."""

from collections.abc import Iterator
import contextlib
import dataclasses
import itertools
import math
import os
import pickle
import signal
import tempfile
import time
from typing import Any, Optional
import weakref

import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import errors
from fedsmp_tff.runtime import batches
from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import map_reduce
from fedsmp_tff.runtime import values
from fedsmp_tff.runtime import workers as workers_lib

_MAX_LOSSES = 3  # A client that ended this many workers is expected to end all of them.
_SECONDS_WITHOUT_WORKER = 300  # An actor imports TensorFlow, possibly on a busy machine.
_MAX_FAILED_STARTS = 3
_SECONDS_TO_CONNECT = 10
_IS_ALIVE = '/ray.rpc.NodeInfoGcsService/CheckAlive'
# Of 107 in the name of a socket; Ray adds up to 65 (/session_TIME_PROCESS/sockets/plasma_store), and
# `tempfile` 12.
_MAX_PARENT_BYTES = 30
_SECONDS_BETWEEN_CHECKS, _MAX_FAILED_CHECKS = 5.0, 3
_MAX_BATCH = 64  # Clients whose integers a worker adds before it sends one sum.
# Larger datasets are sent by reference, once for all rounds. A reference costs this process 0.5 ms,
# as Ray counts its holders: a tiny client of two datasets takes 1.2 ms with references, else 0.2.
_MAX_SENT_BYTES = 2**16


class WorkersLostError(errors.Error, RuntimeError):
  """No Ray worker is left, or a client ends each worker that runs it."""


@dataclasses.dataclass
class _Call:
  """A batch in progress on a worker; `deadline` is in seconds of `time.monotonic`."""

  actor: Any
  batch: range
  deadline: float


class RayWorkers(workers_lib.Workers):
  """Runs clients in actors, one batch at a time each; replaces lost actors.

  Ray does not restart actors or repeat calls here (`max_restarts` and `max_task_retries` are 0): it
  repeats a call on the same actor alone. While Ray still takes a dead node for alive, for some 15 s,
  all repetitions fail at once; and then they wait for room for that actor, though another is idle.
  """

  def __init__(
      self, num_workers: Optional[int], client_timeout: float, environment: dict[str, str]
  ):
    """Initializes the workers, with the arguments of `ray_context`; Ray must be initialized.

    `environment` has the workers' environment variables, which are set before TensorFlow starts.
    """
    import ray  # pylint: disable=g-import-not-at-top

    from fedsmp_tff.runtime import ray_worker  # pylint: disable=g-import-not-at-top

    self._ray = ray
    self._ok = ray_worker.OK
    self._num_workers = num_workers
    self._use_gpus = use_gpus = ray.cluster_resources().get('GPU', 0) > 0
    self._client_timeout = client_timeout
    # Sent by value: the nodes need not have this package, and a different version has no effect.
    for module in (batches, graphs, ray_worker):
      ray.cloudpickle.register_pickle_by_value(module)
    self._actor_class = ray.remote(
        num_cpus=int(not use_gpus), num_gpus=int(use_gpus), max_restarts=0, max_task_retries=0
    )(_actor_class())
    self._actor_arguments = (
        environment,
        ray.cloudpickle.dumps(ray_worker.Worker),
        (tf.__version__, use_gpus),
    )
    # Starting actors, by the reference that is ready when they are; then idle actors.
    self._starting = {}
    self._free = []
    self._failed_starts = 0
    self._give_up = math.inf  # The time by which a worker must have started if there is none.
    self._head = ray.get_runtime_context().gcs_address
    self._resources, self._next_check = {}, 0.0
    self._keys = itertools.count()
    self._works = weakref.WeakKeyDictionary()
    self._datasets = weakref.WeakKeyDictionary()

  def run(self, job: workers_lib.Job) -> Iterator[workers_lib.Result]:
    """See `workers.Workers`.

    Raises:
      WorkersLostError: If no worker is left and none can be started, or a batch ended several.
    """
    work = job.work
    if work not in self._works:
      self._works[work] = next(self._keys), [self._ray.put((work.graph, work.sums))]
    broadcast = [self._ray.put([t.numpy() for t in job.broadcast])]
    common = *self._works[work], next(self._keys), broadcast
    cohort = workers_lib.Cohort(job, _MAX_BATCH)
    calls = {}
    self._give_up = math.inf
    try:
      while cohort:
        wanted = self._start_actors(len(calls))
        while self._free and (batch := cohort.take(wanted)) is not None:
          actor = self._free.pop()
          clients = [[self._sent(leaf) for leaf in job.clients[p]] for p in batch]
          deadline = time.monotonic() + self._client_timeout * len(clients)
          calls[actor.run.remote(*common, batch, clients)] = _Call(actor, batch, deadline)
        yield from self._collect(cohort, calls)
    finally:
      # A client that still runs when the round fails would delay the next round.
      for call in calls.values():
        self._ray.kill(call.actor)

  def _start_actors(self, num_busy: int) -> int:
    """Asks for missing workers, which Ray starts when it has room; returns the wanted number."""
    if time.monotonic() >= self._next_check:
      self._check_head()
      self._resources = self._ray.cluster_resources()
      self._next_check = time.monotonic() + _SECONDS_BETWEEN_CHECKS
    wanted = self._num_workers
    if wanted is None:
      wanted = int(self._resources.get('GPU' if self._use_gpus else 'CPU', 0))
    for _ in range(wanted - num_busy - len(self._free) - len(self._starting)):
      actor = self._actor_class.remote(*self._actor_arguments)
      self._starting[actor.ready.remote()] = actor
    return max(wanted, 1)

  def _check_head(self) -> None:
    """Raises WorkersLostError if the cluster's head node answers none of several calls.

    Without it Ray's own calls would wait for a minute, and then end this process in C++.
    """
    for num_failed in itertools.count(1):
      try:
        return _check_reachable(self._head)
      except ConnectionError as error:
        if num_failed == _MAX_FAILED_CHECKS:
          raise WorkersLostError(
              f'The head node is lost: {error}. Start a new cluster; a run with checkpoints resumes'
              ' there.'
          ) from None
      time.sleep(_SECONDS_BETWEEN_CHECKS)

  def _collect(self, cohort, calls) -> Iterator[workers_lib.Result]:
    """Waits for results, starts and losses of workers, and yields the results to be used."""
    now, ready = time.monotonic(), []
    timeout = min([_SECONDS_BETWEEN_CHECKS, *(c.deadline - now for c in calls.values())])
    if waiting := [*calls, *self._starting]:
      ready, _ = self._ray.wait(waiting, num_returns=1, timeout=max(timeout, 0.0))
    else:  # The cluster has no CPU or GPU at all, for now.
      time.sleep(timeout)
    if calls or self._free:
      self._give_up = math.inf
    elif self._give_up == math.inf:
      self._give_up = now + _SECONDS_WITHOUT_WORKER
    elif now >= self._give_up and not ready:
      raise WorkersLostError(
          f'No Ray worker is left, and none could be started within {_SECONDS_WITHOUT_WORKER} s:'
          f' the cluster has {self._ray.cluster_resources()}, of which'
          f' {self._ray.available_resources()} is free. Add nodes, or ask for fewer workers.'
      )
    for reference in ready:
      if reference in self._starting:
        self._started(reference)
        continue
      call = calls.pop(reference)
      try:
        outcome, results = self._ray.get(reference)
      except self._ray.exceptions.RayTaskError:
        raise  # The client's own error, which any worker would raise.
      except self._ray.exceptions.RayError as error:
        # The actor or its node died, or the node that stored the result.
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
      self._lost(
          cohort, calls.pop(reference),
          f'no answer within client_timeout={self._client_timeout:g} s per client',
      )

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
    self._ray.kill(call.actor)
    losses = cohort.requeue(call.batch)
    if losses >= _MAX_LOSSES:
      raise WorkersLostError(
          f'A client from {call.batch[0]} to {call.batch[-1]} of the round was lost with'
          f' {losses} Ray workers, one after the other; the last: {reason}. Check its data, the'
          " nodes' memory, and the timeout per client."
      )

  def _sent(self, leaf: values.Leaf) -> Any:
    """Returns a leaf to send: a dataset as a tuple of its graph or a reference to it."""
    if not isinstance(leaf, tf.data.Dataset):
      return leaf.numpy()
    if leaf not in self._datasets:
      graph = tf.raw_ops.DatasetToGraphV2(input_dataset=values.tensor_of(leaf)).numpy()
      is_small = len(graph) <= _MAX_SENT_BYTES
      self._datasets[leaf] = (graph if is_small else self._ray.put(graph),)
    return self._datasets[leaf]

  def close(self) -> None:
    for actor in [*self._free, *self._starting.values()]:
      self._ray.kill(actor)
    self._free, self._starting = [], {}


def _actor_class() -> type:
  """Returns the actor's class, which Ray sends by value because a function defines it."""

  class Actor:

    def __init__(self, environment, worker_class, arguments):
      os.environ.update(environment)  # Before TensorFlow is imported.
      self._worker = pickle.loads(worker_class)(*arguments)

    def ready(self):
      return True

    def run(self, *arguments):
      return self._worker.run(*arguments)

  return Actor


def _check_reachable(address: str) -> None:
  """Raises ConnectionError if no cluster answers; Ray would try for many minutes."""
  if not address.rpartition(':')[2].isdigit():  # 'auto', for which Ray knows the answer at once.
    return
  import grpc  # pylint: disable=g-import-not-at-top
  from ray._private import grpc_utils  # pylint: disable=g-import-not-at-top

  # A call, since something else can listen there, which Ray would wait for.
  with grpc_utils.init_grpc_channel(address, [('grpc.enable_http_proxy', 0)]) as channel:
    try:
      channel.unary_unary(_IS_ALIVE)(b'', timeout=_SECONDS_TO_CONNECT)
    except grpc.RpcError as error:
      reason = f'{error.code().name}: {error.details()}'
      raise ConnectionError(f'no Ray cluster answers at {address} ({reason})') from None


def _session_parent() -> str:
  """Returns a directory for Ray's session, in which sockets can have names: these are short."""
  parent = os.environ.get('RAY_TMPDIR') or tempfile.gettempdir()  # As Ray, if TMPDIR exists.
  return parent if len(os.fsencode(parent)) <= _MAX_PARENT_BYTES else '/tmp'


@contextlib.contextmanager
def ray_context(
    address: Optional[str] = None,
    workers: Optional[int] = None,
    *,
    client_timeout: float = 600.0,
) -> Iterator[map_reduce.MapReduceContext]:
  """Runs the computations of a `with` block with clients on a Ray cluster.

  The server's part runs in this process. A worker that is lost, or exceeds `client_timeout`, is
  replaced, and its clients run again elsewhere; each client is counted once. The result depends
  neither on the number of workers nor on their losses. Secure aggregation is SIMULATED: workers and
  this process see clients' integers.

  Args:
    address: Address of the cluster, as `ray.init` takes it ('auto' for a running cluster of this
      machine); None: a cluster on this machine for this block.
    workers: Number of workers; None: one per GPU of the cluster, or per CPU core if it has no GPU,
      as the cluster grows and shrinks.
    client_timeout: Maximum seconds per client, with graph construction for a worker's first client.

  Yields:
    The context.

  Raises:
    ImportError: If Ray is not installed.
    ConnectionError: If there is no cluster at `address`.
    ValueError: If a number is out of range.
  """
  if workers is not None:
    errors.check_positive('workers', workers)
  in_range = 0 < client_timeout < math.inf
  errors.check_value(in_range, 'client_timeout', 'positive and finite', client_timeout)
  # Ray's future default; Ray warns of the change if it is not set.
  os.environ.setdefault('RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO', '0')
  # Ray's C++ complains about a missing dashboard or head node on this process's stderr.
  os.environ.setdefault('RAY_BACKEND_LOG_LEVEL', 'fatal')
  import ray  # pylint: disable=g-import-not-at-top

  graphs.use_one_thread_per_op()
  options, stack = {'address': address or 'local'}, contextlib.ExitStack()
  if address is None:
    # Of this cluster alone, and only for this user.
    options['_temp_dir'] = stack.enter_context(tempfile.TemporaryDirectory(
        prefix='ray', dir=_session_parent(), ignore_cleanup_errors=True
    ))
    os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
    options |= {
        'num_cpus': workers or len(os.sched_getaffinity(0)),
        'include_dashboard': False,
        # Other machines need not reach this cluster.
        '_node_ip_address': '127.0.0.1',
    }
  else:
    _check_reachable(address)
  with stack:
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(**options, log_to_driver=False, logging_level='ERROR')
    stack.callback(ray.shutdown)
    if callable(handler) and signal.getsignal(signal.SIGTERM) is not handler:
      # Ray's handler would interrupt a round that the program's handler lets finish.
      signal.signal(signal.SIGTERM, handler)
    environment = {name: value for name, value in os.environ.items() if name.startswith('TF_')}
    context = map_reduce.MapReduceContext(RayWorkers(workers, client_timeout, environment))
    stack.callback(context.close)
    with tff.framework.get_context_stack().install(context):
      yield context
