"""Tests of rounds on a Ray cluster whose workers die, hang, or come late."""

import contextlib
import http.server
import signal
import tempfile
import threading
import time
import types

import numpy as np
import psutil
import pytest
import ray
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import runtime
from fedsmp_tff.runtime import ray_cluster

_CLIENTS = 12


@tff.tensorflow.computation(np.int32)
def _slow_square(x):
  """x^2, in about half a second."""
  matrix = tf.random.stateless_uniform([64, 64], tf.stack([x, x])) / 64
  _, matrix = tf.while_loop(
      lambda i, _: i < 5000, lambda i, m: (i + 1, tf.matmul(m, m)), (0, matrix)
  )
  return x * x + tf.cast(matrix[0, 0] > 1e9, tf.int32)


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def _sum_of_squares(x):
  return tff.federated_secure_sum(tff.federated_map(_slow_square, x), 10**6)


@tff.federated_computation(
    tff.FederatedType(np.int32, tff.SERVER), tff.FederatedType(np.int32, tff.CLIENTS)
)
def _sum_of_multiples(factor, x):
  multiply = tff.tensorflow.computation(lambda a, b: a * b, [np.int32, np.int32])
  return tff.federated_secure_sum(
      tff.federated_map(multiply, (tff.federated_broadcast(factor), x)), 10**6
  )


_VALUES = list(range(1, _CLIENTS + 1))
_SUM = sum(x * x for x in _VALUES)


def _actors():
  found = []
  for child in psutil.Process().children(recursive=True):
    with contextlib.suppress(psutil.NoSuchProcess):
      if 'Actor.run' in ' '.join(child.cmdline()):  # Ray names a process by its call.
        found.append(child)
  return found


@contextlib.contextmanager
def _meanwhile(action):
  """Calls `action` with a process that runs a client, until it returns true."""
  stop = threading.Event()
  happened = []

  def watch():
    while not stop.is_set():
      for actor in _actors():
        with contextlib.suppress(psutil.NoSuchProcess):
          happened.append(actor.pid)
          if action(actor):
            return
      time.sleep(0.05)

  thread = threading.Thread(target=watch)
  thread.start()
  try:
    yield happened
  finally:
    stop.set()
    thread.join()


def _recording(function, arguments):
  def call(argument):
    arguments.append(argument)
    return function(argument)

  return call


class TestComputation:

  @pytest.mark.parametrize('options, error, sentence', [
      ({'workers': 0}, ValueError, 'workers'),
      ({'client_timeout': 0}, ValueError, 'client_timeout'),
      ({'client_timeout': float('nan')}, ValueError, 'client_timeout'),
      ({'address': '127.0.0.1:1'}, ConnectionError, 'no Ray cluster answers at 127.0.0.1:1 '),
  ])
  def test_bad_options_are_refused(self, options, error, sentence):
    with pytest.raises(error, match=sentence), runtime.ray_context(**options):
      pass

  def test_a_server_other_than_ray_is_refused_at_once(self):
    server = http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
      address = f'127.0.0.1:{server.server_port}'
      with pytest.raises(ConnectionError, match=f'no Ray cluster answers at {address} .UNAVAIL'):
        with runtime.ray_context(address):
          pass
    finally:
      server.shutdown()
      thread.join()
      server.server_close()


class TestOneWorker:

  @pytest.fixture(scope='class')
  def received(self, tmp_path_factory):
    """A worker of a program that handles SIGTERM: the signals that its handler receives.

    TMPDIR is as long as batch systems make it; names of sockets have at most 107 bytes.
    """
    received = []
    directory = tmp_path_factory.mktemp('slurm_job_of_a_long_name' * 4)
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
      with pytest.MonkeyPatch.context() as patch:
        patch.setenv('TMPDIR', str(directory))
        patch.setattr(tempfile, 'tempdir', None)  # Python looks at TMPDIR once.
        with runtime.ray_context(workers=1):
          yield received
    finally:
      signal.signal(signal.SIGTERM, before)

  def test_clients_have_the_broadcast_of_their_round(self, received):
    # The worker has fetched the broadcast of the round before.
    assert [_sum_of_multiples(factor, _VALUES) for factor in (2, 5)] == [
        2 * sum(_VALUES), 5 * sum(_VALUES)
    ]

  @pytest.mark.parametrize('max_sent_bytes, num_put', [(2**16, 0), (0, 3)])
  def test_only_large_datasets_are_put_once_by_reference(
      self, received, monkeypatch, max_sent_bytes, num_put
  ):
    monkeypatch.setattr(ray_cluster, '_MAX_SENT_BYTES', max_sent_bytes)

    @tff.federated_computation(tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS))
    def total(data):
      add_up = tff.tensorflow.computation(
          lambda d: d.reduce(0, lambda a, b: a + b), tff.SequenceType(np.int32)
      )
      return tff.federated_secure_sum(tff.federated_map(add_up, data), 100)

    data = [tf.data.Dataset.range(n, output_type=tf.int32) for n in (3, 4, 5)]
    put = []
    monkeypatch.setattr(ray, 'put', _recording(ray.put, put))
    assert [total(data), total(data)] == [19, 19]
    assert len([sent for sent in put if isinstance(sent, bytes)]) == num_put

  def test_the_sigterm_handler_of_the_program_stays(self, received):
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]


class TestLosses:

  @pytest.mark.slow
  def test_the_batch_of_a_killed_worker_counts_once(self):
    with runtime.ray_context(workers=2) as context:
      results = []
      run = context._workers.run

      def watched(job):
        for result in run(job):
          results.append(result)
          yield result

      context._workers.run = watched
      assert _sum_of_squares(_VALUES) == _SUM
      with _meanwhile(lambda actor: actor.kill() or True) as killed:
        assert _sum_of_squares(_VALUES) == _SUM
      # Its place is taken, and rounds go on.
      assert _sum_of_squares(_VALUES) == _SUM
    assert killed
    # For two workers a quarter of the 12 clients that are left, and then of 9, 7, 6, 5 and so on.
    assert sorted(len(result.batch) for result in results) == sorted(3 * ([3, 2] + [1] * 7))
    assert sum(result.values[0] for result in results) == 3 * _SUM

  @pytest.mark.slow
  def test_a_hanging_worker_is_given_up(self, monkeypatch):
    timeout, late = 100000.0, []
    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + sum(late))
    monkeypatch.setattr(ray_cluster, 'time', clock)

    def suspend(actor):
      actor.suspend()
      time.sleep(1)  # It may have been between two batches: then it has the next one by now.
      late.append(timeout * _CLIENTS)
      return True

    with runtime.ray_context(workers=2, client_timeout=timeout):
      assert _sum_of_squares(_VALUES) == _SUM
      with _meanwhile(suspend):
        assert _sum_of_squares(_VALUES) == _SUM
    assert late

  @pytest.mark.slow
  def test_a_client_that_ends_every_worker_ends_the_round(self):
    with runtime.ray_context(workers=2):
      with _meanwhile(lambda actor: actor.kill()) as killed:
        with pytest.raises(runtime.WorkersLostError, match='was lost with 3 Ray workers'):
          _sum_of_squares(_VALUES)
      assert len(set(killed)) >= 3
      assert _sum_of_squares(_VALUES) == _SUM
