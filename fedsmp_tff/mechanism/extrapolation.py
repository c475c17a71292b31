"""The server's step by extrapolation, from a release alone."""

import tensorflow as tf

from fedsmp_tff import state as state_lib


def step(
    release: state_lib.Release, clipping_norm: tf.Tensor, clients_per_round: int
) -> tf.Tensor:
  """Returns a step after FedExP, a factor on the release: float64 from 1 to max(1, r/2).

  FedExP (Jhunjhunwala, Wang and Joshi, 2023, equation 9) multiplies the mean update by

    max(1, mean ||update_i||^2 / (2 ||mean update||^2)),

  which is large where clients disagree, so that their mean is short: the weights move by
  mean ||update_i||^2 / (2 ||mean update||). This step moves them as far, noise included, as FedExP
  would without noise. C^2 stands for the clients' mean energy, since clipped updates have norm C,
  and the energy of the mean update is that of the release less that of the noise, which is known:

    max(1, C^2 / (2 ||mean update|| ||release||)).

  (The private FedExP of Takakura et al., 2025, spends epsilon on the clients' mean energy.) The step
  is a function of the release and of public numbers, so that it costs no epsilon (post-processing).

  The difference of the energies is an estimate, close to zero or negative where noise hides the
  mean. It counts as no less than what it cannot tell from zero, which keeps the step finite:

  * sqrt(2 sum stddev^4), the standard deviation of the noise's energy;
  * C^2 / r, the energy of the mean of r orthogonal updates of norm C: less means that updates
    cancel, or are shorter than C, so that C^2 is too large for their energy.

  Args:
    release: The release.
    clipping_norm: float64, C of the round; at C = 0 the step is 1.
    clients_per_round: r.
  """
  variance = release.stddev**2
  energy, clipped_energy = tf.reduce_sum(release.values**2), clipping_norm**2
  deviation = tf.sqrt(2 * tf.reduce_sum(variance**2))
  signal = energy - tf.reduce_sum(variance)
  signal = tf.reduce_max([signal, deviation, clipped_energy / clients_per_round])
  length = tf.sqrt(signal * tf.maximum(energy, signal))
  factor = tf.math.divide_no_nan(clipped_energy, 2 * length)
  # Squares of a huge C are infinite.
  factor = tf.where(tf.math.is_finite(factor), factor, 1.0)
  return tf.clip_by_value(factor, 1.0, max(1.0, clients_per_round / 2))
