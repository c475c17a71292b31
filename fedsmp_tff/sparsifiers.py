"""Sparsifiers choose the k of d coordinates that a round updates: RandK, TopK, Dense.

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
from fedsmp_tff.mechanism import state as state_lib


class PublicContext(NamedTuple):
  """The public information by which the server chooses; it contains no client's data.

  Attributes:
    shapes: The shapes of the model's tensors.
    dim: d, the number of their elements.
    seed: int64[2], the public seed of the round.
    round_num: int32, the number of the round, from 0.
    memory: The result of `Sparsifier.remember`; () without one.
    public_update: Makes the update [d] on the sparsifier's `public_training` from the
      round's weights; raises `ValueError` where there is none.
  """

  shapes: flattening.Shapes
  dim: int
  seed: Any
  round_num: Any
  memory: Any
  public_update: Callable[[], Any]


class PublicTraining(NamedTuple):
  """A training on public data from the round's weights: one, or the mean of several.

  Attributes:
    examples: A structure `(x, y)` of arrays whose first dimension counts the examples.
    training: A `LocalTraining`.
    clients: The number of pseudo-clients that train in parallel, each on its own part of the
      examples, drawn anew each time; the mean of their clipped updates is the public update. None:
      training on all examples, as in the paper.
  """

  examples: Any
  training: Any
  clients: Optional[int] = None


class Sparsifier(abc.ABC):
  """Chooses k of d coordinates: the interface of every way to choose them.

  Attributes:
    mask_rounds: H: coordinates are chosen before rounds 0, H, 2 H... and held in between.
      They are public from their choice on, so that holding them costs no privacy.
    keeps_all: Whether k = d: no coordinates are chosen, stored or sent.
  """

  mask_rounds: int = 1
  keeps_all: bool = False

  @abc.abstractmethod
  def num_kept(self, dim: int) -> int:
    """Returns k for a vector of `dim` coordinates.

    Raises:
      ValueError: If this sparsifier can't keep that many of `dim`.
    """

  @abc.abstractmethod
  def choose(self, context: PublicContext) -> tf.Tensor:
    """Returns a round's coordinates, int32[k], distinct, in any order."""

  def scale(self, dim: int) -> float:
    """Returns the factor on a client's masked values, before it clips them."""
    del dim
    return 1.0

  def initial_memory(self, dim: int) -> Any:
    """Returns the memory before any release: a structure of tensors of fixed shapes, public."""
    del dim
    return ()

  def remember(self, memory: Any, release: state_lib.Release) -> Any:
    """Returns the memory after one more valid release."""
    del release
    return memory

  def public_training(self, client_training: Any) -> Optional[PublicTraining]:
    """Returns the training of `PublicContext.public_update`; None: no public data.

    Args:
      client_training: The clients' `LocalTraining`.
    """
    del client_training
    return None


@dataclasses.dataclass(frozen=True)
class SizedSparsifier(Sparsifier):
  """A sparsifier with k as an option: a fraction of d, or a number.

  Attributes:
    compression_ratio: p in (0, 1]; k = max(1, round(p d)).
    num: k itself, instead of `compression_ratio`.
    mask_rounds: See `Sparsifier`; 1 is the paper's.
  """

  compression_ratio: Optional[float] = None
  num: Optional[int] = None
  mask_rounds: int = dataclasses.field(default=1, kw_only=True)

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
    if num is not None:
      _check_positive('num', num)
    _check_positive('mask_rounds', self.mask_rounds)

  def num_kept(self, dim: int) -> int:
    if self.num is None:
      return max(1, round(self.compression_ratio * dim))
    if self.num > dim:
      raise ValueError(
          f'`num` must be at most the number of coordinates, {dim}. Found {self.num}.'
      )
    return int(self.num)


@dataclasses.dataclass(frozen=True)
class RandK(SizedSparsifier):
  """k coordinates uniformly at random; masked values are scaled by d/k.

  Definition 6 and SelectRandk of Algorithm 1. The scale makes the sparsified
  update an unbiased estimate of the update (before clipping).

  >>> randk = RandK(compression_ratio=0.25)
  >>> randk.num_kept(dim=12), randk.scale(dim=12)
  (3, 4.0)
  >>> coordinates = randk.select(dim=12, seed=tf.constant([1, 2], tf.int64))
  >>> len(set(coordinates.numpy()))
  3
  """

  def scale(self, dim: int) -> float:
    return dim / self.num_kept(dim)

  def choose(self, context: PublicContext) -> tf.Tensor:
    return self.select(context.dim, context.seed)

  def select(self, dim: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns k distinct coordinates int32[k] from `seed` int64[2].

    The k largest of d independent 64-bit keys: every k-subset is equally likely,
    but for equal keys, whose probability is under d^2 / 2^65.
    """
    keys = tf.random.stateless_uniform(
        [dim], seed, minval=None, maxval=None, dtype=tf.int64
    )
    return tf.math.top_k(keys, self.num_kept(dim)).indices


@dataclasses.dataclass(frozen=True, eq=False)
class TopK(SizedSparsifier):
  """The k coordinates with the largest update on public data; values are not scaled.

  SelectTopk of Algorithm 1. The server trains on the public data from the round's weights, as
  clients do or by `training`. It needs those weights, so it works in
  `fedsmp_tff.build_fed_smp`, which has them, and not as a stock process's aggregator.

  A mask should predict the mean of many short trainings. With `public_clients` the public
  update is such a mean: pseudo-clients, each with an equal part of the public examples, train
  in parallel, and their updates are clipped to the clients' C.

  Privacy: a function of public data and of the round's weights, which are past releases. So the
  coordinates are public before the round begins, whatever the options.

  >>> topk = TopK(num=2, public_examples=(np.zeros([8, 3]), np.zeros(8)))
  >>> topk.select(tf.constant([0.1, -3.0, 0.2, 2.0])).numpy().tolist()
  [1, 3]

  Attributes:
    public_examples: A structure `(x, y)` of arrays whose first dimension counts
      the examples; `fedsmp_tff.examples_of(dataset)` makes it from a dataset.
      The guarantee does not cover these examples.
    training: A `LocalTraining` on the public data, with a learning rate of its own; None: the
      clients', at their learning rate of the round.
    public_clients: The number of pseudo-clients; None: one training on all public examples,
      as in the paper. Each draws its examples without replacement, anew each time.
  """

  public_examples: Any = None
  training: Any = None
  public_clients: Optional[int] = None

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
    if self.public_clients is not None:
      _check_positive('public_clients', self.public_clients)
      if self.public_clients > min(lengths):
        raise ValueError(
            f'`public_clients`={self.public_clients} must be at most the number of public examples.'
            f' Found {min(lengths)} examples.'
        )

  def public_training(self, client_training: Any) -> PublicTraining:
    training = client_training if self.training is None else self.training
    return PublicTraining(self.public_examples, training, self.public_clients)

  def choose(self, context: PublicContext) -> tf.Tensor:
    return self.select(context.public_update())

  def select(self, public_update: tf.Tensor) -> tf.Tensor:
    """Returns the coordinates int32[k] of the largest |values| of a vector [d].

    Of equal magnitudes the lower coordinate is taken, on every device; NaN counts as zero.
    """
    magnitude = tf.abs(public_update)
    magnitude = tf.where(
        tf.math.is_nan(magnitude), tf.zeros_like(magnitude), magnitude
    )
    return tf.math.top_k(magnitude, self.num_kept(magnitude.shape[0])).indices


@dataclasses.dataclass(frozen=True)
class Dense(Sparsifier):
  """Keeps all d coordinates: FedAvg and DP-FedAvg."""

  keeps_all = True

  def num_kept(self, dim: int) -> int:
    return dim

  def choose(self, context: PublicContext) -> tf.Tensor:
    return tf.range(context.dim)


def _check_positive(name: str, value: Any) -> None:
  if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
    raise ValueError(f'`{name}` must be a positive integer. Found {value}.')
