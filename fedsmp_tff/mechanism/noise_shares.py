"""Draws a client's share of the noise, in reals or integers, from a seed."""

import tensorflow as tf

from fedsmp_tff.mechanism import noise


def gaussian_share(
    num_values: int, stddev: float, seed: tf.Tensor
) -> tf.Tensor:
  """One client's share, float64[num_values], drawn from `seed` int64[2].

  The seed must be fresh for each client and round (`randomness.fresh_seed`):
  shares from one seed are equal, and equal shares don't add up as independent
  ones do.
  """
  return tf.random.stateless_normal(
      [num_values], seed, stddev=stddev, dtype=tf.float64
  )


def integer_share(
    num_values: int, kind: str, variance: float, seed: tf.Tensor
) -> tf.Tensor:
  """One client's share, int64[num_values], drawn from `seed` int64[2].

  By inversion of 128 random bits: no floating point, no rejection, and a distance from
  the distribution that `noise.integer_table` states.

  Args:
    num_values: How many.
    kind: See `noise.integer_table`.
    variance: See `noise.integer_table`.
    seed: See `gaussian_share`.
  """
  table = noise.integer_table(kind, variance)
  bits = tf.random.stateless_uniform(
      [2, num_values], seed, minval=None, maxval=None, dtype=tf.int64
  )
  below = tf.searchsorted(table.high, bits[0], out_type=tf.int64)
  nearest = tf.minimum(below, len(table.high) - 1)
  passes = (tf.gather(table.high, nearest) == bits[0]) & (
      tf.gather(table.low, nearest) <= bits[1]
  )
  return table.lowest + below + tf.cast(passes, tf.int64)
