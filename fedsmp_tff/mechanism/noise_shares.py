"""Draws a client's share of the noise, in reals or integers, from a seed."""

import tensorflow as tf

from fedsmp_tff.mechanism import chacha20
from fedsmp_tff.mechanism import integer_noise

# Below it the first word alone would give a probability of less than 24 bits.
_DEEP = 2**23


def gaussian_share(
    num_values: int, stddev: float, seed: tf.Tensor
) -> tf.Tensor:
  """One client's share, float64[num_values], drawn from `seed` int64[2].

  The seed must be fresh for each client and round (`randomness.fresh_seed`):
  shares from one seed are equal, and equal shares don't add up as independent
  ones do.

  By inversion of 64 random bits a value, of 128 in the tails (`normal_of_bits`), since
  TensorFlow's own float64 normal ends at 5.68 standard deviations: with one share in a sum,
  that end is seen.
  """
  first = chacha20.stream(seed, num_values)
  # The second words matter to values beyond 7 standard deviations alone, which one share in
  # a million of 10^6 values has; to draw them always takes 1.8 times as long.
  deep = tf.reduce_any(tf.bitwise.bitwise_and(first, tf.int64.max) < _DEEP)
  second = tf.cond(
      deep,
      lambda: chacha20.stream(seed, 2 * num_values)[num_values:],
      lambda: tf.zeros([num_values], tf.int64),
  )
  return stddev * normal_of_bits(tf.stack([first, second]))


def normal_of_bits(bits: tf.Tensor) -> tf.Tensor:
  """Returns the standard normal values that random bits determine.

  One bit is the sign. The others are a probability p in (0, 1/2), uniform, whose quantile is
  the magnitude: 63 bits are its multiple of 2^-64, 63 more what lies between. So p
  has float64's relative precision however small it is, in both tails. The least
  p is 2^-128: the values end at 13.1 standard deviations. What a normal distribution has
  beyond is 2^-127, so that it costs a run of 10^6 rounds, each of 10^5 shares of
  10^6 values, a delta under 10^-21.

  Args:
    bits: int64[2, n], all of int64 as likely.

  Returns:
    float64[n].
  """
  magnitude = tf.cast(tf.bitwise.bitwise_and(bits, tf.int64.max), tf.float64)
  between = (magnitude[1] + 0.5) * 2.0**-63
  below_zero = tf.math.ndtri((magnitude[0] + between) * 2.0**-64)
  return tf.where(bits[0] < 0, below_zero, -below_zero)


def integer_share(num_values: int, variance: float, seed: tf.Tensor) -> tf.Tensor:
  """One client's share of discrete Gaussian noise, int64[num_values], drawn from `seed` int64[2].

  It inverts the distribution at 128 random bits: without floating point, without rejection,
  and within the distance from the distribution that `integer_noise.integer_table` states.

  Args:
    num_values: Number of integers.
    variance: See `integer_noise.integer_table`.
    seed: See `gaussian_share`.
  """
  table = integer_noise.integer_table(variance)
  bits = tf.reshape(chacha20.stream(seed, 2 * num_values), [2, num_values])
  below = tf.searchsorted(table.high, bits[0], out_type=tf.int64)
  nearest = tf.minimum(below, len(table.high) - 1)
  passes = (tf.gather(table.high, nearest) == bits[0]) & (
      tf.gather(table.low, nearest) <= bits[1]
  )
  return table.lowest + below + tf.cast(passes, tf.int64)
