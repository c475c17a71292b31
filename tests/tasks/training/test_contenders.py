"""Tests that the benchmark's contenders do the work that their figures claim."""

import os
import pathlib
import subprocess
import sys

from absl import flags
import numpy as np
import pytest
import tensorflow as tf

from tasks.datasets import fashion_mnist
from tasks.datasets import task as task_lib
from tasks.models import initializers
from tasks.training import contenders


def _data(num_clients, examples):
  rng = np.random.default_rng(0)

  def some(num):
    return (
        rng.integers(0, 256, (num, 28, 28, 1), np.uint8),
        rng.integers(0, 10, num, np.int32),
    )

  return task_lib.TaskData([some(examples) for _ in range(num_clients)], some(5), None, '')


class TestExecution:

  def test_flops_are_those_of_the_model_s_weights(self, set_flags):
    # A module's fixture may have left others.
    set_flags('--fashion_mnist_filters=32,64', '--fashion_mnist_dense_units=512')
    # Of each kernel: a multiply-add a weight and output position; 14x14 and 28x28
    # positions for the convolutions, one for the dense layers.
    weights = fashion_mnist.TASK.build_model(initializers.KerasInitializer(0)).initial_weights[0]
    kernels = [w.size for w in weights if w.ndim > 1]
    forward = np.dot(kernels, [28 * 28, 14 * 14, 1, 1])
    by_inputs = np.dot(kernels[1:], [14 * 14, 1, 1])
    expected = 2 * (2 * forward + by_inputs) * 3 * 4 * 7
    assert contenders.training_flops(_data(3, 4), 3, 7) == expected

  def test_stock_and_ours_train_the_same_examples_as_often(self):
    # In a process without a seeded run, whose determinism Keras's random weights refuse.
    script = f'from tests.tasks.training import {pathlib.Path(__file__).stem} as t; t.check()'
    environment = {n: v for n, v in os.environ.items() if n != 'TF_DETERMINISTIC_OPS'}
    done = subprocess.run(
        [sys.executable, '-c', script], text=True, capture_output=True, check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr

  def test_updates_have_norms_below_the_clip(self):
    norms = [float(tf.norm(u)) for u in contenders.updates(10_000, 6)]
    assert norms == pytest.approx([0.1] * 6, rel=0.05)


def check():
  """What `test_stock_and_ours_train_the_same_examples_as_often` runs."""
  flags.FLAGS([''])
  data = _data(2, 4)
  settings = fashion_mnist.TASK.settings
  # `dp_aggregator` refuses its noise for few clients.
  stock = contenders.stock(fashion_mnist.TASK, data, 100)
  assert len(stock.clients) == 100
  batches = [len(y) for _, y in stock.clients[0]]
  assert sum(batches) == 4 * settings.local_epochs
  ours = contenders.fed_smp(fashion_mnist.TASK, data, 3, contenders.fedsmp_tff.Dense())
  assert [int(d.cardinality()) for d in ours.clients] == [4, 4, 4]
