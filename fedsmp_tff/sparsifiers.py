"""Sparsifiers: choose the k of d coordinates that a round updates.

The SERVER chooses once per round, for all clients, from public randomness, public data or past
releases, never from clients' data. So the choice costs no privacy, and the k values of all clients
add up in one secure sum.
"""

import abc
from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from fedsmp_tff import errors
from fedsmp_tff import flattening
from fedsmp_tff import state as state_lib


class PublicContext(NamedTuple):
  """The public information from which a sparsifier chooses coordinates.

  Attributes:
    shapes: Shapes of the model's tensors.
    dim: d, the number of elements of all tensors.
    seed: int64[2], public seed of the round.
    round_num: int32, number of the round, from 0.
    memory: The sparsifier's memory of past releases; () without a memory.
    public_update: Returns the update [d], clipped to C, on the sparsifier's `public_training` from
      the round's weights; raises `ValueError` without public data or without the weights.
  """

  shapes: flattening.Shapes
  dim: int
  seed: Any
  round_num: Any
  memory: Any
  public_update: Callable[[], Any]


class PublicTraining(NamedTuple):
  """Training on public data from the round's weights, as clients train, by pseudo-clients.

  Attributes:
    examples: A pair (x, y) of arrays whose first dimension counts the examples, or a mapping with
      these keys.
    clients: See `TopK.public_clients`.
  """

  examples: Any
  clients: Optional[int] = None


class Sparsifier(abc.ABC):
  """Interface: chooses k of d coordinates.

  Privacy: a mask must be a function of public data, public randomness and past releases alone, so
  that it is public before the round and costs no epsilon (`FedSmpRound`).

  Attributes:
    mask_rounds: H, the number of rounds per mask. A mask is chosen before rounds 0, H, 2 H... and
      held in between, which costs no privacy, since it is public.
    keeps_all: Whether k = d: no coordinates are chosen, stored or sent.
  """

  mask_rounds: int = 1
  keeps_all: bool = False

  @abc.abstractmethod
  def num_kept(self, dim: int) -> int:
    """Returns k for `dim` coordinates; raises ValueError if k would exceed `dim`."""

  @abc.abstractmethod
  def choose(self, context: PublicContext) -> tf.Tensor:
    """Returns a round's coordinates, int32[k], distinct, in any order; the round checks them."""

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

  def public_training(self) -> Optional[PublicTraining]:
    """Returns the training of `PublicContext.public_update`, or None without public data."""
    return None


@dataclasses.dataclass(frozen=True)
class SizedSparsifier(Sparsifier):
  """A sparsifier with an option for k: a fraction of d, or a number.

  Attributes:
    compression_ratio: p in (0, 1]; k = max(1, round(p d)).
    num: k itself, instead of `compression_ratio`.
    mask_rounds: See `Sparsifier`; the paper has 1.
  """

  compression_ratio: Optional[float] = None
  num: Optional[int] = None
  mask_rounds: int = dataclasses.field(default=1, kw_only=True)

  def __post_init__(self):
    ratio, num = self.compression_ratio, self.num
    if (ratio is None) == (num is None):
      raise ValueError(
          'Exactly one of `compression_ratio` and `num` must be set. Found'
          f' compression_ratio={ratio}, num={num}.'
      )
    if ratio is not None:
      errors.check_value(0 < ratio <= 1, 'compression_ratio', 'in (0, 1]', ratio)
    else:
      errors.check_positive('num', num)
    errors.check_positive('mask_rounds', self.mask_rounds)

  def num_kept(self, dim: int) -> int:
    if self.num is None:
      return max(1, round(self.compression_ratio * dim))
    if self.num > dim:
      raise ValueError(f'`num` must be at most the number of coordinates, {dim}. Found {self.num}.')
    return int(self.num)


@dataclasses.dataclass(frozen=True)
class RandK(SizedSparsifier):
  """Selects k coordinates uniformly at random; by default, masked values are scaled by d/k.

  Implements SelectRandk of Algorithm 1, whose scale makes the masked update an unbiased estimate
  of the update (before clipping). Definition 6 of the paper has no scale: `unbiased=False`.

  >>> randk = RandK(compression_ratio=0.25)
  >>> randk.num_kept(dim=12), randk.scale(dim=12)
  (3, 4.0)
  >>> coordinates = randk.select(dim=12, seed=tf.constant([1, 2], tf.int64))
  >>> len(set(coordinates.numpy()))
  3
  >>> RandK(compression_ratio=0.25, unbiased=False).scale(dim=12)
  1.0

  Attributes:
    unbiased: Whether a client multiplies its masked values by d/k before it clips them.
  """

  unbiased: bool = dataclasses.field(default=True, kw_only=True)

  def scale(self, dim: int) -> float:
    return dim / self.num_kept(dim) if self.unbiased else 1.0

  def choose(self, context: PublicContext) -> tf.Tensor:
    return self.select(context.dim, context.seed)

  def select(self, dim: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns k distinct coordinates, int32[k], from `seed`, int64[2].

    They have the k largest of d independent 64-bit keys: every k-subset is equally likely, except
    for equal keys, whose probability is under d^2 / 2^65.
    """
    keys = tf.random.stateless_uniform([dim], seed, minval=None, maxval=None, dtype=tf.int64)
    return tf.math.top_k(keys, self.num_kept(dim)).indices


@dataclasses.dataclass(frozen=True, eq=False)
class TopK(SizedSparsifier):
  """Selects the k coordinates with the largest update on public data; values are not scaled.

  Implements SelectTopk of Algorithm 1. The server trains on the public data from the round's
  weights. This requires the weights, so `TopK` works in `fedsmp_tff.build_fed_smp`, but not as the
  aggregator of a stock TFF process.

  >>> topk = TopK(num=2, public_examples=(np.zeros([8, 3]), np.zeros(8)))
  >>> topk.select(tf.constant([0.1, -3.0, 0.2, 2.0])).numpy().tolist()
  [1, 3]

  Attributes:
    public_examples: A pair (x, y) of arrays whose first dimension counts the examples, or a mapping
      with these keys, such as `fedsmp_tff.examples_of(dataset)`. The guarantee does not cover these
      examples.
    public_clients: Number of pseudo-clients, each with an equal part of the examples, redrawn each
      time; the public update is the mean of their updates, each clipped to C. None: one training on
      all public examples, as in the paper.
  """

  public_examples: Any = None
  public_clients: Optional[int] = None

  def __post_init__(self):
    super().__post_init__()
    if self.public_examples is None:
      raise ValueError('`public_examples` must be set. Found None.')
    examples = tf.nest.map_structure(np.asarray, self.public_examples)
    lengths = {len(array) for array in tf.nest.flatten(examples)}
    if len(lengths) != 1 or 0 in lengths:
      raise ValueError(
          '`public_examples` must be arrays of the same positive length. Found lengths'
          f' {sorted(lengths)}.'
      )
    object.__setattr__(self, 'public_examples', examples)
    if self.public_clients is not None:
      errors.check_positive('public_clients', self.public_clients)
      if self.public_clients > min(lengths):
        raise ValueError(
            f'`public_clients`={self.public_clients} must be at most the number of public examples.'
            f' Found {min(lengths)} examples.'
        )

  def public_training(self) -> PublicTraining:
    return PublicTraining(self.public_examples, self.public_clients)

  def choose(self, context: PublicContext) -> tf.Tensor:
    return self.select(context.public_update())

  def select(self, public_update: tf.Tensor) -> tf.Tensor:
    """Returns the coordinates, int32[k], of the largest magnitudes of a vector [d].

    Of equal magnitudes the lower coordinate comes first, on every device; NaN counts as zero.
    """
    magnitude = tf.abs(public_update)
    magnitude = tf.where(tf.math.is_nan(magnitude), tf.zeros_like(magnitude), magnitude)
    return tf.math.top_k(magnitude, self.num_kept(magnitude.shape[0])).indices


@dataclasses.dataclass(frozen=True)
class Dense(Sparsifier):
  """Selects all d coordinates: FedAvg and DP-FedAvg."""

  keeps_all = True

  def num_kept(self, dim: int) -> int:
    return dim

  def choose(self, context: PublicContext) -> tf.Tensor:
    return tf.range(context.dim)
