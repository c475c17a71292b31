"""Draws a client's share of the noise, in reals or integers, from a seed."""

import tensorflow as tf

from fedsmp_tff.mechanism import chacha20
from fedsmp_tff.mechanism import integer_noise

# A first word below it has fewer than 24 significant bits.
_DEEP = 2**23


def gaussian_share(num_values: int, stddev: float, seed: tf.Tensor) -> tf.Tensor:
  """Draws one client's Gaussian noise share by inversion of random bits.

  TensorFlow's own float64 normal ends at 5.68 standard deviations, which shows if one share is
  in a sum. So each value comes from 64 random bits, in the tails from 128 (`normal_of_bits`).

  Args:
    num_values: Number of values.
    stddev: Standard deviation of each value.
    seed: int64[2], fresh for each client and round (`randomness.fresh_seed`): shares from one
      seed are equal and do not add up as independent shares do.

  Returns:
    float64[num_values].
  """
  first = chacha20.stream(seed, num_values)
  # Second words matter only beyond 7 standard deviations, which one share of 10^6 values in a
  # million has; drawing them always takes 1.8 times as long.
  deep = tf.reduce_any(tf.bitwise.bitwise_and(first, tf.int64.max) < _DEEP)
  second = tf.cond(
      deep,
      lambda: chacha20.stream(seed, 2 * num_values)[num_values:],
      lambda: tf.zeros([num_values], tf.int64),
  )
  return stddev * normal_of_bits(tf.stack([first, second]))


def normal_of_bits(bits: tf.Tensor) -> tf.Tensor:
  """Returns standard normal values by inversion of random bits.

  One bit is the sign. The others are a probability p in (0, 1/2), uniform, whose quantile is the
  magnitude: 63 bits are its multiple of 2^-64, 63 more the rest. So p has float64's relative
  precision in both tails, however small it is. The least p is 2^-128: values end at 13.1 standard
  deviations. The mass of 2^-127 beyond costs a delta under 10^-21 in 10^6 rounds of 10^5 shares
  of 10^6 values.

  Args:
    bits: int64[2, n], uniform over all of int64.

  Returns:
    float64[n].
  """
  magnitude = tf.cast(tf.bitwise.bitwise_and(bits, tf.int64.max), tf.float64)
  between = (magnitude[1] + 0.5) * 2.0**-63
  below_zero = tf.math.ndtri((magnitude[0] + between) * 2.0**-64)
  return tf.where(bits[0] < 0, below_zero, -below_zero)


def integer_share(num_values: int, variance: float, seed: tf.Tensor) -> tf.Tensor:
  """Draws one client's share of discrete Gaussian noise by inversion of 128 random bits.

  There is no floating point and no rejection; `integer_noise.integer_table` states the distance
  from the distribution.

  Args:
    num_values: Number of integers.
    variance: See `integer_noise.integer_table`.
    seed: See `gaussian_share`.

  Returns:
    int64[num_values].
  """
  table = integer_noise.integer_table(variance)
  bits = tf.reshape(chacha20.stream(seed, 2 * num_values), [2, num_values])
  below = tf.searchsorted(table.high, bits[0], out_type=tf.int64)
  nearest = tf.minimum(below, len(table.high) - 1)
  is_tied = tf.gather(table.high, nearest) == bits[0]
  passes = is_tied & (tf.gather(table.low, nearest) <= bits[1])
  return table.lowest + below + tf.cast(passes, tf.int64)
