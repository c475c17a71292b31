"""The server's choices for a round, by past releases, public data and chance alone."""

import collections
from collections.abc import Callable, Sequence
import functools
from typing import Any, Optional, Union

import tensorflow as tf

from fedsmp_tff import flattening
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import state as state_lib
from fedsmp_tff.post_processing import base

_KINDS = collections.OrderedDict(factors=base.Factors, guess=base.Guess, filter=base.Filter)


def by_kind(post_processing: Sequence[base.PostProcessing]) -> dict[str, Any]:
  """Returns the members of a list by the name of their kind: factors, guess, filter.

  Raises:
    TypeError: If a member is of none of these kinds.
    ValueError: If two are of one kind.
  """
  if isinstance(post_processing, base.PostProcessing):
    raise TypeError(f'`post_processing` must be a list. Found {type(post_processing)}.')
  found = {}
  for member in post_processing:
    names = [name for name, kind in _KINDS.items() if isinstance(member, kind)]
    if len(names) != 1:
      raise TypeError(
          '`post_processing` must be a list of `Factors`, `Guess` and `Filter` objects. Found'
          f' {type(member)}.'
      )
    (name,) = names
    if name in found:
      raise ValueError(
          f'`post_processing` must have at most one {_KINDS[name].__name__}. Found'
          f' {found[name]} and {member}.'
      )
    found[name] = member
  return found


class ServerChoices:
  """A round's coordinates, factors and guess; and the update that a release becomes.

  Nothing here sees a client's data: the arguments are releases, public data and public
  randomness. See `base.PostProcessing` for why that costs no privacy.
  """

  def __init__(
      self,
      sparsifier: sparsifiers.Sparsifier,
      shapes: flattening.Shapes,
      post_processing: Sequence[base.PostProcessing] = (),
  ):
    self._sparsifier = sparsifier
    self._shapes = list(shapes)
    self._dim = flattening.dim(shapes)
    members = by_kind(post_processing)
    self._factors, self._guess, self._filter = map(members.get, _KINDS)
    self._remembering = collections.OrderedDict(
        (name, member)
        for name, member in (('sparsifier', sparsifier), *sorted(members.items()))
        if isinstance(member, base.PostProcessing)
    )

  def initial_state(
      self, seed: tf.Tensor, clipping_norm: tf.Tensor
  ) -> state_lib.FedSmpState:
    """Returns the state before round 0, nothing chosen yet (zeros)."""
    num_kept = self._sparsifier.num_kept(self._dim)
    return state_lib.FedSmpState(
        round_num=tf.constant(0),
        seed=tf.ensure_shape(seed, [2]),
        clipping_norm=tf.cast(clipping_norm, tf.float64),
        choice=state_lib.Choice(
            coordinates=tf.zeros([self._sparsifier.num_coordinates(self._dim)], tf.int32),
            factors=tf.zeros([num_kept if self._factors else 0]),
            guess=tf.zeros([num_kept if self._guess else 0]),
        ),
        memory=collections.OrderedDict(
            (name, member.initialize(self._shapes))
            for name, member in self._remembering.items()
        ),
    )

  def update(
      self, release: state_lib.Release, state: state_lib.FedSmpState
  ) -> tuple[tf.Tensor, state_lib.FedSmpState]:
    """Makes the update of the weights, float64[d], and the state that remembers the release.

    Args:
      release: The round's release; if it is not valid, the update is zero and the memory
        stays.
      state: The state after the round.
    """
    memory = collections.OrderedDict(
        (name, member.next(state.memory[name], release))
        for name, member in self._remembering.items()
    )
    values = release.values
    if self._filter is not None:
      known = sparsifiers.Known(
          self._shapes,
          randomness.of_round(state.seed, state.round_num),
          memory['filter'],
          self._no_public_update,
          release.coordinates,
          release,
      )
      values = self._filter.choose(known)
      values = tf.where(release.valid, values, tf.zeros_like(values))
    memory = tf.nest.map_structure(
        lambda new, old: tf.where(release.valid, new, old), memory, state.memory
    )
    return (
        self._sparsifier.scatter(values, state.choice.coordinates, self._dim),
        state._replace(memory=memory),
    )

  def is_due(self, round_num: tf.Tensor) -> Union[bool, tf.Tensor]:
    """Whether coordinates are chosen before a round, or else kept; True where always."""
    mask_rounds = self._sparsifier.mask_rounds
    return True if mask_rounds == 1 else tf.equal(round_num % mask_rounds, 0)

  def choose(
      self,
      state: state_lib.FedSmpState,
      public_update: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
      due: Union[None, bool, tf.Tensor] = None,
  ) -> state_lib.FedSmpState:
    """Returns `state` with its round's coordinates, factors and guess chosen.

    Args:
      state: The state at the start of a round.
      public_update: Maps a seed int64[2] to the update [d] on the sparsifier's public data
        from the round's weights; None where there is none.
      due: Whether coordinates are chosen, or else those of `state` are kept; None: `is_due`.
    """
    due = self.is_due(state.round_num) if due is None else due
    seed = randomness.of_round(state.seed, state.round_num)
    known = sparsifiers.Known(
        self._shapes,
        seed,
        state.memory.get('sparsifier'),
        functools.partial(public_update, seed) if public_update else self._no_public_update,
    )
    coordinates = state.choice.coordinates
    if due is True:
      coordinates = self._sparsifier.choose(known)
    else:
      if public_update:
        # Made outside of the branch, where a runtime finds the trainings that it can share out.
        known = known._replace(public_update=functools.partial(tf.identity, known.public_update()))
      coordinates = tf.cond(due, lambda: self._sparsifier.choose(known), lambda: coordinates)
      coordinates = tf.ensure_shape(coordinates, state.choice.coordinates.shape)
    choice = state.choice._replace(coordinates=coordinates)
    known = known._replace(
        coordinates=self._sparsifier.coordinates(choice.coordinates, self._dim)
    )
    if self._factors:
      own = known._replace(memory=state.memory['factors'])
      choice = choice._replace(factors=self._factors.choose(own))
    if self._guess:
      own = known._replace(memory=state.memory['guess'])
      choice = choice._replace(guess=self._guess.choose(own))
    return state._replace(choice=choice)

  def _no_public_update(self):
    name = type(self._sparsifier).__name__
    raise ValueError(
        f'`{name}` chooses coordinates by training on public data from the model\'s weights,'
        ' which an aggregator does not see, and needs examples to train on. Use'
        f' `fedsmp_tff.build_fed_smp`, and have `{name}.public_training` return them; or take'
        ' `RandK` or `ReleasedTopK` here.'
    )
