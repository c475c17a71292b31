"""Tests of what a finished run shows of its model."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import datasets
from tasks.datasets import showing
from tasks.models import initializers


def _linear_model(kernel):
  """A model whose logits are x times a fixed matrix."""
  return tff.learning.models.FunctionalModel(
      initial_weights=((np.asarray(kernel, np.float32),), ()),
      predict_on_batch_fn=tf.function(lambda weights, x, training: tf.matmul(x, weights[0][0])),
      loss_fn=tf.function(lambda output, label, weight=None: 0.0),
      input_spec=(tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32)),
  )


def test_rows_of_a_confusion_matrix_are_true_classes():
  # 0 is taken for 1, and half of 1 for 0; there is no 2. More examples than a batch.
  model = _linear_model([[0, 1, 0], [1, 0, 0], [0, 1, 0]])
  y = np.repeat(np.arange(2, dtype=np.int32), 600)
  x = np.eye(3, dtype=np.float32)[y]
  x[900:] = [0, 0, 1]
  text = showing.confusion_table(('cat', 'dog', 'cow'))(model, (x, y))
  assert text.splitlines()[1:] == [
      '           0   1   2', '  0 cat    0 100   0', '  1 dog   50  50   0',
      '  2 cow    0   0   0',
  ]


def test_a_text_sample_continues_the_prompt():
  task = datasets.TASKS['shakespeare']
  model = task.build_model(task.options(), initializers.INITIALIZERS['keras'](1))
  text = task.show(model, None)
  assert text.startswith('text sample:\nROMEO. ') and len(text) == len('text sample:\nROMEO. ') + 200
  assert task.show(model, None) == text
