"""Tests of constants that are too large for a graph: the same values, from files."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import constants
from fedsmp_tff import runtime
from tests.support import processes
from tests.support import tiny_models
from tests.support import waiting


def _arrays():
  rng = np.random.default_rng(1)
  return (
      [rng.normal(size=[500, 4]).astype(np.float32), np.float64(0.1)],
      {'n': rng.integers(-9, 9, [3, 1, 200]), 'b': np.array([True, False]), 's': np.array([b'a'])},
  )


def _topk_process():
  return processes.fed_smp(
      tiny_models.linear_regression(),
      fedsmp_tff.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), 3, epochs=2),
      fedsmp_tff.TopK(0.5, public_examples=tiny_models.regression_examples(9, seed=99)),
      clients_per_round=2, clipping_norm=1.0, noise_multiplier=0.0, seed=1,
  )


@pytest.fixture
def files(monkeypatch):
  """Has all constants read from files."""
  monkeypatch.setattr(constants, '_MAX_BYTES', 0)


class TestExecution:

  def test_values_come_back_from_files(self, files):
    comp = tff.tensorflow.computation(lambda: constants.tensors(_arrays()))
    graph = tff.framework.serialize_computation(comp).tensorflow.graph_def.value
    assert len(graph) < 5000 < sum(a.nbytes for a in tf.nest.flatten(_arrays()))
    with runtime.local_context():
      for _ in range(2):
        found = comp()
        for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(_arrays())):
          assert one.dtype == other.dtype or other.dtype.kind == 'S'
          np.testing.assert_array_equal(one, other)

  def test_an_array_in_the_place_of_another_has_its_own_file(self, files):
    for i in range(20):  # Each is gone, and its address free, before the next one is made.
      np.testing.assert_array_equal(constants.tensors(np.full([1000], i)), np.full([1000], i))

  def test_small_ones_are_constants(self, tmp_path, monkeypatch):
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path / 'none'))
    with tf.Graph().as_default() as graph:
      constants.tensors(_arrays())
    assert {node.op for node in graph.as_graph_def().node} == {'Const'}

  def test_a_process_is_the_same_by_files(self, monkeypatch):
    states = []
    for limit in (2**30, 0):
      monkeypatch.setattr(constants, '_MAX_BYTES', limit)
      process = _topk_process()
      with runtime.local_context():
        data = [
            fedsmp_tff.tag_client(i, tf.data.Dataset.from_tensor_slices(
                tiny_models.regression_examples(7, seed=i)
            ))
            for i in range(2)
        ]
        states.append(process.next(process.initialize(), data).state)
    for one, other in zip(*map(tf.nest.flatten, states)):
      np.testing.assert_array_equal(one, other)

  def test_nothing_is_left_of_a_process_that_is_killed(self, tmp_path):
    code = """
import os, signal
import numpy as np
from fedsmp_tff import constants
constants._MAX_BYTES = 0
print(constants.tensors(np.arange(5)).numpy().sum(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, timeout=waiting.SECONDS, check=False,
        env={**os.environ, 'TMPDIR': str(tmp_path)},
    )
    assert done.stdout == b'10\n' and not list(tmp_path.iterdir())
