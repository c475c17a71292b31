"""Which k of the d coordinates the next round keeps: RandK, TopK, Dense.

The coordinates are one choice of the SERVER's for all clients of a round, from
public randomness or public data, never from client data; so they cost no privacy,
and k values of every client add up in one secure sum.
"""

import abc
from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from fedsmp_tff import flattening


class Known(NamedTuple):
  """What the server may choose by: nothing that a client holds.

  Attributes:
    shapes: Of the model's tensors, d elements in all.
    seed: int64[2], public randomness of the round's own.
    memory: Of past releases, of a choice that is a `post_processing.base.PostProcessing`.
    public_update: Makes the update [d] on the sparsifier's `public_training` from the
      round's weights; raises `ValueError` where there is none.
    coordinates: int32[k], the round's kept coordinates, once they are chosen.
    release: For a `post_processing.base.Filter`: the round's `Release`.
  """

  shapes: flattening.Shapes
  seed: Any = None
  memory: Any = None
  public_update: Optional[Callable[[], Any]] = None
  coordinates: Any = None
  release: Any = None


class PublicTraining(NamedTuple):
  """A training on public data from the round's weights.

  Attributes:
    examples: A structure `(x, y)` of arrays whose first dimension counts the examples.
    training: A `LocalTraining`.
  """

  examples: Any
  training: Any


class Sparsifier(abc.ABC):
  """Keeps k of d coordinates; what is the same for every way to choose them."""

  @abc.abstractmethod
  def num_kept(self, dim: int) -> int:
    """k, for a vector of `dim` coordinates.

    Raises:
      ValueError: If this sparsifier can't keep that many of `dim`.
    """

  @abc.abstractmethod
  def choose(self, known: Known) -> tf.Tensor:
    """A round's coordinates, int32[num_coordinates], distinct and ascending."""

  def num_coordinates(self, dim: int) -> int:
    """Length of the list of coordinates in the server's state: k, or 0 if all."""
    return self.num_kept(dim)

  def scale(self, dim: int) -> float:
    """What a client multiplies its kept values with, before it clips them."""
    del dim
    return 1.0

  def public_training(self, of_clients: Any) -> Optional[PublicTraining]:
    """Returns the training whose update `Known.public_update` makes; None: no public data.

    Args:
      of_clients: The clients' `LocalTraining`.
    """
    del of_clients
    return None

  def coordinates(self, chosen: tf.Tensor, dim: int) -> tf.Tensor:
    """Returns the kept coordinates int32[k], from what `choose` returned."""
    del dim
    return chosen

  def gather(self, vector: tf.Tensor, coordinates: tf.Tensor) -> tf.Tensor:
    """The k kept values of `vector` [d] at `coordinates` int32[k]."""
    return tf.gather(vector, coordinates)

  def scatter(
      self, values: tf.Tensor, coordinates: tf.Tensor, dim: int
  ) -> tf.Tensor:
    """The vector [d] with `values` [k] at `coordinates` int32[k], else zero."""
    return tf.scatter_nd(coordinates[:, tf.newaxis], values, [dim])


@dataclasses.dataclass(frozen=True)
class Kept(Sparsifier):
  """How many coordinates are kept: a share of d, or a number.

  Attributes:
    compression_ratio: p in (0, 1]; k = max(1, round(p d)).
    num: k itself, instead of `compression_ratio`.
  """

  compression_ratio: Optional[float] = None
  num: Optional[int] = None

  def __post_init__(self):
    ratio, num = self.compression_ratio, self.num
    if (ratio is None) == (num is None):
      raise ValueError(
          'Exactly one of `compression_ratio` and `num` must be set. Found '
          f'compression_ratio={ratio}, num={num}.'
      )
    # `not (a < x)` rather than `x <= a`: NaN compares false.
    if ratio is not None and not 0 < ratio <= 1:
      raise ValueError(
          f'`compression_ratio` must be in (0, 1]. Found {ratio}.'
      )
    if num is not None and (not isinstance(num, (int, np.integer)) or num < 1):
      raise ValueError(f'`num` must be a positive integer. Found {num}.')

  def num_kept(self, dim: int) -> int:
    if self.num is None:
      return max(1, round(self.compression_ratio * dim))
    if self.num > dim:
      raise ValueError(
          f'`num` must be at most the number of coordinates, {dim}. Found '
          f'{self.num}.'
      )
    return int(self.num)


@dataclasses.dataclass(frozen=True)
class RandK(Kept):
  """k coordinates uniformly at random; kept values are scaled by d/k.

  Definition 6 and SelectRandk of Algorithm 1. The scale makes the sparsified
  update an unbiased estimate of the update (before clipping).
  """

  def scale(self, dim: int) -> float:
    return dim / self.num_kept(dim)

  def choose(self, known: Known) -> tf.Tensor:
    return self.select(flattening.dim(known.shapes), known.seed)

  def select(self, dim: int, seed: tf.Tensor) -> tf.Tensor:
    """k distinct coordinates int32[k], ascending, from `seed` int64[2].

    The k largest of d independent 64-bit keys: every k-subset is equally likely,
    but for equal keys, whose probability is under d^2 / 2^65.
    """
    keys = tf.random.stateless_uniform(
        [dim], seed, minval=None, maxval=None, dtype=tf.int64
    )
    return _indices_of_largest(keys, self.num_kept(dim))


@dataclasses.dataclass(frozen=True, eq=False)
class TopK(Kept):
  """The k coordinates that an update on public data moves most; not scaled.

  SelectTopk of Algorithm 1. The server trains on the public data from the
  round's weights, with the clients' optimizer, batch size and learning rate. It
  needs those weights, so it works in `fedsmp_tff.build_fed_smp`, which has them,
  and not as a stock process's aggregator.

  Attributes:
    public_examples: A structure `(x, y)` of arrays whose first dimension counts
      the examples; `fedsmp_tff.examples_of(dataset)` makes it from a dataset.
      Nobody's privacy is protected in it.
    public_epochs: Passes over the public data; None, with `public_steps` None
      too, takes the clients' setting: as many epochs as they make, or steps.
    public_steps: Steps on the public data (the paper's tau_p), instead.
  """

  public_examples: Any = None
  public_epochs: Optional[int] = None
  public_steps: Optional[int] = None

  def __post_init__(self):
    super().__post_init__()
    if self.public_examples is None:
      raise ValueError('`public_examples` must be set. Found None.')
    examples = tf.nest.map_structure(np.asarray, self.public_examples)
    lengths = {len(array) for array in tf.nest.flatten(examples)}
    if len(lengths) != 1 or 0 in lengths:
      raise ValueError(
          '`public_examples` must be arrays of the same positive length. Found '
          f'lengths {sorted(lengths)}.'
      )
    object.__setattr__(self, 'public_examples', examples)
    if self.public_epochs is not None and self.public_steps is not None:
      raise ValueError(
          'At most one of `public_epochs` and `public_steps` may be set. Found '
          f'{self.public_epochs} and {self.public_steps}.'
      )

  def public_training(self, of_clients: Any) -> PublicTraining:
    training = of_clients
    if self.public_epochs is not None or self.public_steps is not None:
      training = dataclasses.replace(
          of_clients, epochs=self.public_epochs, steps=self.public_steps
      )
    return PublicTraining(self.public_examples, training)

  def choose(self, known: Known) -> tf.Tensor:
    return self.select(known.public_update())

  def select(self, public_update: tf.Tensor) -> tf.Tensor:
    """Coordinates int32[k], ascending, of the largest |values| of a vector [d].

    Of equal magnitudes the lower coordinate is kept; NaN counts as zero.
    """
    magnitude = tf.abs(public_update)
    magnitude = tf.where(
        tf.math.is_nan(magnitude), tf.zeros_like(magnitude), magnitude
    )
    return _indices_of_largest(magnitude, self.num_kept(magnitude.shape[0]))


@dataclasses.dataclass(frozen=True)
class Dense(Sparsifier):
  """Keeps all d coordinates: FedAvg and DP-FedAvg. Their list is left empty."""

  def num_kept(self, dim: int) -> int:
    return dim

  def num_coordinates(self, dim: int) -> int:
    return 0

  def choose(self, known: Known) -> tf.Tensor:
    return tf.zeros([0], tf.int32)

  def coordinates(self, chosen: tf.Tensor, dim: int) -> tf.Tensor:
    return tf.range(dim)

  def gather(self, vector: tf.Tensor, coordinates: tf.Tensor) -> tf.Tensor:
    return vector

  def scatter(
      self, values: tf.Tensor, coordinates: tf.Tensor, dim: int
  ) -> tf.Tensor:
    return values


def _indices_of_largest(values: tf.Tensor, num: int) -> tf.Tensor:
  # `top_k` keeps the lower index of two equal values, on every device.
  return tf.sort(tf.math.top_k(values, num, sorted=True).indices)
