"""A TFF context on TFF's own C++ worker process, which ends with this process.

`tff.backends.test` runs secure sums (as plain sums with range checks: the
secure aggregation is SIMULATED, no cryptography is in TFF's wheel), but its
worker process outlives Python and keeps its stdout open. This context is the
same runtime and the same compiler; only the process is owned here: it is ended
when Python exits, and the kernel ends it if Python is killed.
"""

import atexit
from collections.abc import Iterator
import contextlib
import os
import pathlib
import subprocess
import time
from typing import Optional

import grpc
import portpicker
import tensorflow_federated as tff

from fedsmp_tff.runtime import checks
from fedsmp_tff.runtime import processes

# A model and its public data travel as one message; the protocol's own limit.
_MAX_MESSAGE_BYTES = 2**31 - 1
_SECONDS_TO_START = 120
_SECONDS_TO_END = 5


class _Worker:
  """One `worker_binary` process and the stub that talks to it."""

  def __init__(self, max_concurrent_calls: Optional[int], threads_per_call: int):
    if max_concurrent_calls is None:
      max_concurrent_calls = len(os.sched_getaffinity(0))
    environment = dict(os.environ)
    if threads_per_call > 0:
      environment['TF_NUM_INTRAOP_THREADS'] = str(threads_per_call)
    binary = pathlib.Path(tff.__file__).parent / 'data' / 'worker_binary'
    port = portpicker.pick_unused_port()
    self._process = subprocess.Popen(
        [
            binary,
            f'--port={port}',
            f'--max_concurrent_computation_calls={max_concurrent_calls}',
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # TensorFlow's start-up notes; errors come back through the stub.
        stderr=subprocess.DEVNULL,
        preexec_fn=processes.end_with_parent,
        env=environment,
    )
    self._owner = os.getpid()
    atexit.register(self.end)
    self._stub = tff.framework.RemoteExecutorGrpcStub(
        grpc.insecure_channel(
            f'localhost:{port}',
            [
                ('grpc.max_message_length', _MAX_MESSAGE_BYTES),
                ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
                ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
            ],
        )
    )
    deadline = time.monotonic() + _SECONDS_TO_START
    while not self._stub.is_ready:
      self._check_alive()
      if time.monotonic() > deadline:
        self.end()
        raise RuntimeError(
            f"TFF's worker did not answer within {_SECONDS_TO_START} s of its"
            ' start; is this machine out of memory or processor time?'
        )
      time.sleep(0.1)

  def _check_alive(self) -> None:
    status = self._process.poll()
    if status is not None:
      raise RuntimeError(
          f"TFF's worker process has ended (status {status}; -9 often means"
          ' that memory ran out). Start the command again, with fewer clients'
          ' at once if memory is short.'
      )

  def executor(self, cardinalities: dict) -> tff.framework.RemoteExecutor:
    self._check_alive()
    cardinalities.setdefault(tff.CLIENTS, 0)
    executor = tff.framework.RemoteExecutor(self._stub)
    executor.set_cardinalities(cardinalities)
    return executor

  def end(self) -> None:
    # A forked child inherits this object, but not the right to end the worker.
    if os.getpid() != self._owner or self._process.poll() is not None:
      return
    self._process.terminate()
    try:
      self._process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()


class _Context(tff.framework.SyncExecutionContext, tff.program.FederatedContext):
  """A context for programs (`tff.learning.programs`), too, whose values are there at once."""

  def invoke(self, comp, arg):
    with checks.sentence_first():
      return super().invoke(comp, arg)


def _compile(computation):
  return tff.backends.native.desugar_and_transform_to_native(
      tff.backends.test.replace_secure_intrinsics_with_bodies(computation)
  )


def _create(
    max_concurrent_calls: Optional[int], threads_per_call: int
) -> tuple[tff.framework.SyncExecutionContext, _Worker]:
  worker = _Worker(max_concurrent_calls, threads_per_call)
  context = _Context(
      executor_fn=tff.framework.ResourceManagingExecutorFactory(
          worker.executor
      ),
      compiler_fn=_compile,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
  )
  return context, worker


def set_tff_context(
    max_concurrent_calls: Optional[int] = None, threads_per_call: int = 1
) -> None:
  """Makes a local TFF worker the context of every computation from here on.

  The worker runs secure sums as plain sums with range checks: it SIMULATES
  secure aggregation. It ends when this Python process does, however that ends.

  One client a processor, with one thread each, was the fastest arrangement: 4.1 s
  where TFF's own (all clients at once, every operation on all processors) took
  5.1 s, for 100 clients of Fashion-MNIST on two cores.

  Args:
    max_concurrent_calls: Clients that train at the same time; None: as many as
      there are processors; not positive: all.
    threads_per_call: Threads of one TensorFlow operation; not positive: as many as
      there are processors.

  Raises:
    RuntimeError: If the worker can't be started.
  """
  context, _ = _create(max_concurrent_calls, threads_per_call)
  tff.framework.set_default_context(context)


@contextlib.contextmanager
def tff_context(
    max_concurrent_calls: Optional[int] = None, threads_per_call: int = 1
) -> Iterator[tff.framework.SyncExecutionContext]:
  """As `set_tff_context`, for a `with` block; the worker ends with the block.

  Args:
    max_concurrent_calls: See `set_tff_context`.
    threads_per_call: See `set_tff_context`.

  Yields:
    The context, on whose worker computations called in the block run.

  Raises:
    RuntimeError: If the worker can't be started.
  """
  context, worker = _create(max_concurrent_calls, threads_per_call)
  try:
    with tff.framework.get_context_stack().install(context):
      yield context
  finally:
    worker.end()


class _NoContext(tff.framework.SyncContext):

  def invoke(self, comp, arg):
    raise RuntimeError('Python is ending.')


# TFF's own default context is taken down while Python is whole. Left to the end of Python,
# its destructor may find modules that are gone, and a traceback is printed.
atexit.register(lambda: tff.framework.set_default_context(_NoContext()))
