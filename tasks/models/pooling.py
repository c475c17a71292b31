"""2x2 max-pooling with its own gradient, for CPUs, where TensorFlow's searches the maxima again.

That search was 15 % of a client's training time in a profile. Here the gradient reuses the
comparisons of the forward pass, and every operation runs over contiguous memory.
"""

import tensorflow as tf


def max_pool_2x2(images: tf.Tensor) -> tf.Tensor:
  """Returns `tf.nn.max_pool2d(images, 2, 2, 'SAME')`, with the same gradient.

  Args:
    images: float32[B, H, W, C], all but B static.

  Returns:
    float32[B, ceil(H / 2), ceil(W / 2), C].
  """
  _, height, width, _ = images.shape
  if height % 2 or width % 2:
    return tf.nn.max_pool2d(images, 2, 2, 'SAME')
  return _max_pool_even(images)


@tf.custom_gradient
def _max_pool_even(images: tf.Tensor) -> tf.Tensor:
  _, height, width, channels = images.shape
  pooled_width = width // 2
  # The first of equal values in row-major order gets the gradient, as in TensorFlow: so neighbours
  # within a row are compared first, and then rows.
  rows, keep_left = _larger_half(images, 2 * channels)
  pooled, keep_top = _larger_half(rows, 2 * pooled_width * channels)

  def gradient(upstream):
    row_gradient = _to_larger_half(upstream, keep_top)
    return tf.reshape(_to_larger_half(row_gradient, keep_left), tf.shape(images))

  return tf.reshape(pooled, [-1, height // 2, pooled_width, channels]), gradient


def _larger_half(values, length):
  """Returns the larger of the halves of each run of `length` values, and where it is the first."""
  first, second = tf.split(tf.reshape(values, [-1, length]), 2, axis=1)
  return tf.maximum(first, second), first >= second


def _to_larger_half(gradient, keep_first):
  gradient = tf.reshape(gradient, tf.shape(keep_first))
  zero = tf.zeros_like(gradient)
  return tf.concat(
      # Not `tf.where`: it broadcasts, which costs a copy of each operand.
      [
          tf.raw_ops.Select(condition=keep_first, x=gradient, y=zero),
          tf.raw_ops.Select(condition=keep_first, x=zero, y=gradient),
      ],
      axis=1,
  )
