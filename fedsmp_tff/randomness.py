"""Seeds: int64[2] tensors, fresh from the operating system or derived from one another.

Every random number of this library comes from a stateless TensorFlow operation
on such a seed, so that there is one path for private runs (fresh seeds) and for
reproducible simulations (derived seeds). A derived seed protects nobody: who
knows the run's seed can remove the noise.
"""

from typing import Union

import tensorflow as tf


def fresh_seed() -> tf.Tensor:
  """A new int64[2] each time that the operation runs.

  TensorFlow draws it from a generator that each process seeds from the operating
  system's entropy source, never from the clock.
  """
  return tf.raw_ops.NonDeterministicInts(
      shape=tf.constant([2], tf.int64), dtype=tf.int64
  )


def fold_in(seed: tf.Tensor, data: Union[int, tf.Tensor]) -> tf.Tensor:
  """The seed int64[2] that `seed` and the integer `data` determine."""
  return tf.random.fold_in(
      tf.cast(seed, tf.int64), tf.cast(data, tf.int64)
  )
