"""The paper's image CNNs as `FunctionalModel`s."""

from collections.abc import Sequence
from typing import Optional

import tensorflow as tf

from tasks.models import initializers
from tasks.models import split

_KERNEL = 5
_WHITE = 255.0


def cross_entropy(logits, labels, sample_weight=None):
  """Returns the mean over all labels, as Keras's loss."""
  del sample_weight
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def cnn(
    image_shape: Sequence[int], filters: Sequence[int], dense_units: Sequence[int],
    num_classes: int, initializer: initializers.Initializer,
    moments: Optional[tuple[float, float]] = None,
) -> split.SplitModel:
  """Returns a model of 5x5 convolutions with 2x2 max-pooling and ReLU, then dense layers.

  Section 5 of the paper: Fashion-MNIST takes filters 32, 64 and one dense layer of 512 (1,663,370
  parameters); SVHN filters 64, 128 and dense 384, 192 (3,431,754).

  Args:
    image_shape: Height, width and channels of an image.
    filters: Output channels of each convolution.
    dense_units: Units of each hidden dense layer, before ReLU.
    num_classes: Number of logits.
    initializer: Draws the initial weights.
    moments: Mean and standard deviation of pixels in [0, 1], by which they are standardized; None:
      they are not.

  Returns:
    A model of images uint8[B, H, W, C] with labels int32[B].
  """
  height, width, channels = image_shape
  weights = []
  for outputs in filters:
    weights += initializer.dense((_KERNEL, _KERNEL, channels, outputs))
    channels = outputs
    height, width = -(-height // 2), -(-width // 2)
  units = height * width * channels
  for outputs in (*dense_units, num_classes):
    weights += initializer.dense((units, outputs))
    units = outputs

  def body(model_weights, images):
    layers = iter(model_weights)
    out = tf.cast(images, tf.float32) / _WHITE
    if moments is not None:
      mean, stddev = moments
      out = (out - mean) / stddev
    for _ in filters:
      kernel, bias = next(layers), next(layers)
      out = tf.nn.bias_add(tf.nn.conv2d(out, kernel, 1, 'SAME'), bias)
      out = tf.nn.relu(tf.nn.max_pool2d(out, 2, 2, 'SAME'))
    out = tf.reshape(out, [-1, height * width * channels])
    for _ in dense_units:
      out = tf.nn.relu(tf.matmul(out, next(layers)) + next(layers))
    return out

  return split.SplitModel(
      body, weights,
      loss_fn=cross_entropy,
      input_spec=(tf.TensorSpec([None, *image_shape], tf.uint8), tf.TensorSpec([None], tf.int32)),
  )
