"""What the server chooses for a round, from past releases, public data and chance alone."""

import collections
from collections.abc import Callable
import functools
from typing import Optional

import tensorflow as tf

from fedsmp_tff import flattening
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import state as state_lib
from fedsmp_tff.post_processing import base
from fedsmp_tff.post_processing import filters
from fedsmp_tff.post_processing import preconditioning
from fedsmp_tff.post_processing import prediction as prediction_lib


class ServerChoices:
  """A round's coordinates, factors and guess; and the update that a release becomes.

  Nothing here sees a client's data: the arguments are releases, public data and public
  randomness. See `base.PostProcessing` for why that costs no privacy.
  """

  def __init__(
      self,
      sparsifier: sparsifiers.Sparsifier,
      shapes: flattening.Shapes,
      *,
      preconditioner: Optional[preconditioning.Preconditioner],
      prediction: Optional[prediction_lib.Prediction],
      server_filter: Optional[filters.Filter],
  ):
    self._sparsifier = sparsifier
    self._shapes = list(shapes)
    self._dim = flattening.dim(shapes)
    self._preconditioner = preconditioner
    self._prediction = prediction
    self._filter = server_filter
    self._remembering = collections.OrderedDict(
        (name, one)
        for name, one in (
            ('sparsifier', sparsifier),
            ('preconditioner', preconditioner),
            ('prediction', prediction),
            ('server_filter', server_filter),
        )
        if isinstance(one, base.PostProcessing)
    )

  def initial_state(
      self, seed: tf.Tensor, clipping_norm: tf.Tensor
  ) -> state_lib.FedSmpState:
    """The state before round 0, nothing chosen yet (zeros)."""
    num_kept = self._sparsifier.num_kept(self._dim)
    return state_lib.FedSmpState(
        coordinates=tf.zeros([self._sparsifier.num_coordinates(self._dim)], tf.int32),
        round_num=tf.constant(0),
        seed=tf.ensure_shape(seed, [2]),
        clipping_norm=tf.cast(clipping_norm, tf.float64),
        factors=tf.zeros([num_kept if self._preconditioner else 0]),
        guess=tf.zeros([num_kept if self._prediction else 0]),
        memory=collections.OrderedDict(
            (name, one.initialize(self._shapes)) for name, one in self._remembering.items()
        ),
    )

  def update(
      self, release: state_lib.Release, released: tf.Tensor, state: state_lib.FedSmpState
  ) -> tuple[tf.Tensor, state_lib.FedSmpState]:
    """What moves the weights, float64[d], and the state that remembers the release.

    Args:
      release: The round's.
      released: Whether there is one; if not, nothing moves and nothing is remembered.
      state: The state after the round.
    """
    memory = collections.OrderedDict(
        (name, one.next(state.memory[name], release))
        for name, one in self._remembering.items()
    )
    values = release.values
    if self._filter is not None:
      values = self._filter.values(memory['server_filter'], self._shapes, release)
      values = tf.where(released, values, tf.zeros_like(values))
    memory = tf.nest.map_structure(
        lambda new, old: tf.where(released, new, old), memory, state.memory
    )
    return (
        self._sparsifier.scatter(values, state.coordinates, self._dim),
        state._replace(memory=memory),
    )

  def choose(
      self,
      state: state_lib.FedSmpState,
      public_update_fn: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
  ) -> state_lib.FedSmpState:
    """`state` with its round's coordinates, factors and guess chosen.

    Args:
      state: The state at the start of a round.
      public_update_fn: For `TopK`: maps a seed int64[2] to the update [d] on
        public data from the round's weights.
    """
    seed = randomness.fold_in(state.seed, state.round_num)
    known = sparsifiers.Known(
        self._shapes,
        seed,
        state.memory.get('sparsifier'),
        public_update_fn and functools.partial(public_update_fn, seed),
    )
    coordinates = self._sparsifier.choose(known)
    state = state._replace(coordinates=coordinates)
    if not self._sparsifier.num_coordinates(self._dim):
      coordinates = tf.range(self._dim)
    if self._preconditioner:
      factors = self._preconditioner.factors(
          state.memory['preconditioner'], self._shapes, coordinates
      )
      state = state._replace(factors=factors)
    if self._prediction:
      guess = self._prediction.guess(state.memory['prediction'], coordinates)
      state = state._replace(guess=guess)
    return state
