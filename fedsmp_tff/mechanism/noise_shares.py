"""Draws a client's share of the noise, in reals or integers, from a seed."""

from collections.abc import Sequence

import tensorflow as tf

from fedsmp_tff.mechanism import chacha20
from fedsmp_tff.mechanism import integer_noise

_DEEP = 2**23  # A first word below it has fewer than 24 significant bits.
# Numerators and denominators of `_upper_quantile`, constants first: center, tails, far tails.
_CENTER = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
     1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
     3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
     5.2264952788528545610e3),
)
_TAIL = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
     3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
     2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
     1.05075007164441684324e-9),
)
_FAR_TAIL = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
     2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
     2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
     2.04426310338993978564e-15),
)


def gaussian_share(num_values: int, stddev: float, seed: tf.Tensor) -> tf.Tensor:
  """Draws one client's Gaussian noise share by inversion of random bits.

  TensorFlow's own float64 normal ends at 5.68 standard deviations, which is visible in a sum with
  one share. So each value comes from 64 random bits, in the tails from 128 (`normal_of_bits`).

  Args:
    num_values: Number of values.
    stddev: Standard deviation of each value.
    seed: int64[2], fresh for each client and round (`randomness.fresh_seed`): shares from one
      seed are equal and do not add up as independent shares do.

  Returns:
    float64[num_values].
  """
  first = chacha20.stream(seed, num_values)
  # Second words matter only beyond 7 standard deviations, which one in a million shares of 10^6
  # values reaches; drawing them always takes 1.8 times as long.
  deep = tf.reduce_any(tf.bitwise.bitwise_and(first, tf.int64.max) < _DEEP)
  second = tf.cond(
      deep,
      lambda: chacha20.stream(seed, 2 * num_values)[num_values:],
      lambda: tf.zeros([num_values], tf.int64),
  )
  return stddev * normal_of_bits(tf.stack([first, second]))


@tf.function(autograph=False, jit_compile=True)
def normal_of_bits(bits: tf.Tensor) -> tf.Tensor:
  """Returns standard normal values by inversion of random bits.

  One bit is the sign. The others are a probability p in (0, 1/2), uniform, whose quantile is the
  magnitude: 63 bits are its multiple of 2^-64, 63 more the remainder. So p has float64's relative
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
  value = _upper_quantile((magnitude[0] + between) * 2.0**-64)
  return tf.where(bits[0] < 0, -value, value)


def _upper_quantile(p: tf.Tensor) -> tf.Tensor:
  """Returns the z that a normal value exceeds with probability p, float64 in (0, 1/2].

  Algorithm AS 241 (PPND16) of Wichura (1988), whose relative error is about 1e-16. XLA takes 14 ms
  for 1.66 million values of it; TensorFlow's own `ndtri` takes 70 ms, and is infinite below
  2.8e-17 if XLA compiles it.
  """
  center = 0.5 - p
  root = tf.sqrt(-tf.math.log(p))
  return tf.where(
      center <= 0.425,
      center * _ratio(_CENTER, 0.180625 - center**2),
      tf.where(root <= 5.0, _ratio(_TAIL, root - 1.6), _ratio(_FAR_TAIL, root - 5.0)),
  )


def _ratio(coefficients: tuple[Sequence[float], Sequence[float]], x: tf.Tensor) -> tf.Tensor:
  """Returns the ratio of two polynomials."""
  numerator, denominator = (
      tf.math.polyval([tf.constant(c, tf.float64) for c in reversed(polynomial)], x)
      for polynomial in coefficients
  )
  return numerator / denominator


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
