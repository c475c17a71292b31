"""Tests of the life of TFF's worker: it ends with the process that started it."""

import signal
import subprocess
import sys

import psutil
import pytest
import tensorflow_federated as tff

from fedsmp_tff import runtime
from tests.support import waiting

_START = """
import os, signal, sys
import psutil
import numpy as np
import tensorflow_federated as tff
from fedsmp_tff import runtime
runtime.set_tff_context()

@tff.tensorflow.computation(np.int32)
def add_one(x):
  return x + 1

assert add_one(1) == 2
[worker] = psutil.Process().children()
print(worker.pid, flush=True)
"""


def _workers():
  return [c.pid for c in psutil.Process().children() if 'worker_binary' in c.name()]


class TestExecution:

  def test_a_block_ends_its_worker(self):
    before = set(_workers())
    with runtime.tff_context():

      @tff.tensorflow.computation
      def one():
        return 1

      assert one() == 1
      assert len(set(_workers()) - before) == 1
    assert set(_workers()) == before

  def test_an_exception_ends_the_worker(self):
    before = set(_workers())
    with pytest.raises(KeyError), runtime.tff_context():
      raise KeyError
    assert set(_workers()) == before

  @pytest.mark.parametrize(
      'ending, status',
      [
          ('', 0),
          ('raise KeyError', 1),
          ('os.kill(os.getpid(), signal.SIGKILL)', -signal.SIGKILL),
          ('os.kill(os.getpid(), signal.SIGTERM)', -signal.SIGTERM),
      ],
  )
  def test_the_worker_ends_however_python_does(self, ending, status):
    # Reading to the end of its output would hang if the worker kept it open.
    done = subprocess.run(
        [sys.executable, '-c', _START + ending],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=waiting.SECONDS,
        check=False,
    )
    assert done.returncode == status
    waiting.until_ended([int(done.stdout)])
