"""Scale, then privatize: public factors that put less noise where values are small."""

import dataclasses

import tensorflow as tf

from fedsmp_tff import sparsifiers
from fedsmp_tff.post_processing import base
from fedsmp_tff.post_processing import energies as energies_lib

# Factors stay within this of one another's mean, whatever the estimates are.
_MOST = 10.0


@dataclasses.dataclass(frozen=True)
class Preconditioner(energies_lib.RemembersEnergies, base.Factors):
  """Multiplies the k values by public factors before the clip and undoes it afterwards.

  After arXiv 2507.01129 (scale then privatize). With factors a, the noise on value j is
  C sigma / (r a_j). Among factors that leave the clients' norm, sum a_j^2 x_j^2, as it is,
  the noise's energy is least for a_j^2 proportional to 1 / |x_j|; the least is
  (sum |x_j|)^2 / (k sum x_j^2) of what it is without factors. |x_j| is estimated from
  past releases (`energies.Energies`), and the factors are scaled so that
  sum a_j^2 x_j^2 = sum x_j^2 for the estimates: C keeps its meaning.

  Privacy: the factors are a function of past releases, and the clip to C comes after they
  were applied, so that a round's sensitivity is C (`base.PostProcessing`).

  Attributes:
    decay: What is left, a round later, of what a release said; in (0, 1].
    exponent: a_j is proportional to |x_j|^-exponent; 0 for no factors, 1/2 for the
      least noise, 1 for equal values. In [0, 1].
  """

  decay: float = 0.95
  exponent: float = 0.5

  def __post_init__(self):
    self.check_decay()
    if not 0 <= self.exponent <= 1:
      raise ValueError(f'`exponent` must be from 0 to 1. Found {self.exponent}.')

  def choose(self, known: sparsifiers.Known) -> tf.Tensor:
    # Ones before any release.
    energies = tf.gather(known.memory.estimate(known.shapes), known.coordinates)
    mean = tf.reduce_mean(tf.maximum(energies, 0.0))
    relative = tf.math.divide_no_nan(energies, mean)
    # |x|^-exponent is energy^(-exponent / 2).
    relative = tf.where(mean > 0, tf.clip_by_value(relative, _MOST**-2.0, _MOST**2), 1.0)
    factors = relative ** (-self.exponent / 2)
    return factors * tf.sqrt(
        tf.reduce_sum(relative) / tf.reduce_sum(factors**2 * relative)
    )
