"""Tests of the labels that logits predict."""

import numpy as np
import pytest
import tensorflow as tf

from tasks import errors
from tasks.models import predictions

_CLASSES = np.array([2, 0, 1])
_SIGNS = np.array([1, 0, 1])


@pytest.mark.parametrize('kind', [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize('logits, labels', [
    (np.eye(3)[_CLASSES], _CLASSES),
    (np.eye(3)[_CLASSES], _CLASSES[:, np.newaxis]),
    (np.eye(3)[np.stack([_CLASSES] * 2)], np.stack([_CLASSES] * 2)),
    (_SIGNS - 0.1, _SIGNS),
    (_SIGNS - 0.1, _SIGNS[:, np.newaxis]),
    ((_SIGNS - 0.1)[:, np.newaxis], _SIGNS),
    ((_SIGNS - 0.1)[:, np.newaxis], _SIGNS[:, np.newaxis]),
    (np.stack([_SIGNS - 0.1] * 2)[..., np.newaxis], np.stack([_SIGNS] * 2)),
])
def test_predictions_have_the_shape_and_the_type_of_labels(logits, labels, kind):
  labels = labels.astype(kind)
  for rows in (3, 0):  # A dummy participant and an empty shard have no examples.
    predicted = predictions.predicted_labels(tf.constant(logits[:rows]), tf.constant(labels[:rows]))
    assert predicted.dtype == kind
    np.testing.assert_array_equal(predicted, labels[:rows])


@pytest.mark.parametrize('logits, labels', [
    ([5, 3], [5, 3]), ([5, 3], [5, 2]), ([5, 4, 3], [5]), ([5, 3], [5, 4]), ([5, 4, 3], [5, 3]),
])
def test_labels_that_do_not_fit_the_logits_are_refused(logits, labels):
  with pytest.raises(errors.InputError, match='Labels of shape .5.* are not one class for each'):
    predictions.predicted_labels(tf.zeros(logits), tf.zeros(labels, tf.int32))


def test_labels_of_unknown_size_are_predicted():
  @tf.function(input_signature=[tf.TensorSpec([None, None, 3]), tf.TensorSpec([None, 2], tf.int32)])
  def predicted(logits, labels):
    return predictions.predicted_labels(logits, labels)

  labels = np.array([[0, 2], [1, 1]], np.int32)
  np.testing.assert_array_equal(predicted(np.eye(3, dtype=np.float32)[labels], labels), labels)
