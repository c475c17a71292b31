"""A client's share of the noise: r independent shares add up to the mechanism's noise."""

import math

import tensorflow as tf


def share_stddev(
    clipping_norm: float, noise_multiplier: float, clients_per_round: int
) -> float:
  """Standard deviation of one client's noise on one kept value: C sigma / sqrt(r).

  Algorithm 1, last line of DP-spar: N(0, C^2 sigma^2 / r) a coordinate. The sum
  of r such shares is N(0, C^2 sigma^2): the Gaussian mechanism of Lemma 3 for a
  sum of sensitivity C.
  """
  return clipping_norm * noise_multiplier / math.sqrt(clients_per_round)


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
