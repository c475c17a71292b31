"""Tests of what a finished run shows of its model."""

import types

import numpy as np
import tensorflow as tf

from tasks.datasets import confusion_matrix


def test_rows_of_a_confusion_matrix_are_true_classes():
  # Class 0 is predicted as 1, and half of 1 as 0; no example is of class 2. More than a batch.
  kernel = tf.constant([[0, 1, 0], [1, 0, 0], [0, 1, 0]], tf.float32)
  model = types.SimpleNamespace(
      initial_weights=kernel, predict_on_batch=lambda weights, x, training: tf.matmul(x, weights)
  )
  y = np.repeat(np.arange(2, dtype=np.int32), 600)
  x = np.eye(3, dtype=np.float32)[y]
  x[900:] = [0, 0, 1]
  text = confusion_matrix.confusion_table(('cat', 'dog', 'cow'))(model, (x, y))
  assert text.splitlines()[1:] == [
      '           0   1   2', '  0 cat    0 100   0', '  1 dog   50  50   0',
      '  2 cow    0   0   0',
  ]
