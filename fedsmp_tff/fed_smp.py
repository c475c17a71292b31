"""One round of Algorithm 1 as TensorFlow functions, in the order in which they run.

  server  choose      the round's coordinates
          message     what the clients get
  client  report      masks, clips, adds noise, encodes
          secure_sum  adds the integers of all clients
  server  finish      decodes, and makes an update of the release

`FedSmpFactory.create`, `build_fed_smp`, the audit and the tests all run these.
"""

import collections
from collections.abc import Callable
import functools
from typing import Optional, Union

import tensorflow as tf

from fedsmp_tff import flattening
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import channel as channel_lib
from fedsmp_tff.mechanism import masked_sum
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import state as state_lib

# Maps a round's public seed, int64[2], to an update [d] on public data.
PublicUpdate = Callable[[tf.Tensor], tf.Tensor]


class FedSmpRound(masked_sum.MaskedPrivateSum):
  """The masked private sum, with the server's choice of coordinates before it.

  The choice sees releases, public data and public randomness, and nothing of a client. It costs no
  epsilon: a function of differentially private outputs is as private as they are (post-processing;
  Dwork and Roth, 2014, Proposition 2.1), and composition is adaptive, so that a round's mechanism may
  depend on all earlier releases. Its sensitivity is C whatever was chosen: the clip comes last.
  """

  def __init__(
      self,
      sparsifier: sparsifiers.Sparsifier,
      mechanism: mechanism_lib.Mechanism,
      shapes: flattening.Shapes,
      make_channel: masked_sum.MakeChannel = masked_sum.make_channel,
  ):
    """Initializes.

    Args:
      sparsifier: Chooses the coordinates.
      mechanism: The options of the private sum.
      shapes: The shapes of the model's tensors.
      make_channel: Makes the channel.
    """
    super().__init__(flattening.dim(shapes), sparsifier, mechanism, make_channel)
    self._shapes = list(shapes)

  def initial_state(self, seed: Optional[int]) -> state_lib.FedSmpState:
    """Returns the state before round 0, nothing chosen yet (zeros).

    Args:
      seed: Seed of the masks, which are public; None: a fresh one.
    """
    state_seed = randomness.fresh_seed() if seed is None else randomness.of_run(seed)
    return state_lib.FedSmpState(
        round_num=tf.constant(0),
        seed=tf.ensure_shape(state_seed, [2]),
        clipping_norm=self.clipping_norm(tf.constant(0)),
        coordinates=tf.zeros([self._sparsifier.num_coordinates(self.dim)], tf.int32),
        memory=self._sparsifier.initial_memory(self.dim),
    )

  def is_due(self, round_num: tf.Tensor) -> Union[bool, tf.Tensor]:
    """Whether coordinates are chosen before a round, or else kept; True where always."""
    mask_rounds = self._sparsifier.mask_rounds
    return True if mask_rounds == 1 else tf.equal(round_num % mask_rounds, 0)

  def choose(
      self,
      state: state_lib.FedSmpState,
      public_update: Optional[PublicUpdate] = None,
      due: Union[None, bool, tf.Tensor] = None,
  ) -> state_lib.FedSmpState:
    """Returns `state` with its round's coordinates chosen.

    Args:
      state: The state at the start of a round.
      public_update: Makes the update on the sparsifier's public data from the round's weights; None
        where there is none.
      due: Whether coordinates are chosen, or else those of `state` are kept; None: `is_due`.

    Raises:
      ValueError: If the sparsifier asks for a public update and there is none.
    """
    due = self.is_due(state.round_num) if due is None else due
    seed = randomness.of_round(state.seed, state.round_num)
    known = sparsifiers.Known(
        self._shapes,
        seed,
        state.memory,
        functools.partial(public_update, seed) if public_update else self._no_public_update,
    )
    if due is True:
      return state._replace(coordinates=self._sparsifier.choose(known))
    if public_update:
      # Made outside of the branch: what is not due takes no step.
      known = known._replace(public_update=functools.partial(tf.identity, known.public_update()))
    coordinates = tf.cond(
        due, lambda: self._sparsifier.choose(known), lambda: state.coordinates
    )
    return state._replace(coordinates=tf.ensure_shape(coordinates, state.coordinates.shape))

  def finish(
      self, total: channel_lib.Report, state: state_lib.FedSmpState
  ) -> tuple[
      tf.Tensor, state_lib.FedSmpState, collections.OrderedDict[str, tf.Tensor]
  ]:
    """Makes the update of a round.

    Args:
      total: The secure sum of the reports.
      state: The state of the round.

    Returns:
      The update, float64[d], zero if the release is not valid; the state of the next round, whose
      coordinates are not yet chosen; and the measurements.
    """
    release, next_state, measurements = self.release(total, state)
    memory = tf.nest.map_structure(
        lambda new, old: tf.where(release.valid, new, old),
        self._sparsifier.remember(state.memory, release),
        state.memory,
    )
    update = self._sparsifier.scatter(release.values, state.coordinates, self.dim)
    return update, next_state._replace(memory=memory), measurements

  def _no_public_update(self):
    name = type(self._sparsifier).__name__
    raise ValueError(
        f'`{name}` chooses coordinates by training on public data from the model\'s weights,'
        ' which an aggregator does not see, and needs examples to train on. Use'
        f' `fedsmp_tff.build_fed_smp`, and have `{name}.public_training` return them; or take'
        ' `RandK` or `ReleasedTopK` here.'
    )
