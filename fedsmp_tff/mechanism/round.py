"""One round of Algorithm 1 as TensorFlow functions, in the order in which they run.

  server  choose      the round's coordinates
  client  report      masks, clips, adds noise, encodes
          secure_sum  adds the integers of all participants
  server  finish      decodes, makes an update of the release, and remembers it

`FedSmpFactory.create`, `build_fed_smp`, the audit and the tests all run these.
"""

import collections
from collections.abc import Callable
import functools
import math
from typing import Optional

import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import flattening
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import channel as channel_lib
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import state as state_lib

# Maps a round's public seed, int64[2], to an update [d] on public data.
PublicUpdate = Callable[[tf.Tensor], tf.Tensor]
Measurements = collections.OrderedDict[str, tf.Tensor]


class FedSmpRound:
  """The masked private sum, with the server's choice of coordinates before it.

  The choice sees releases, public data and public randomness, and nothing of a client. It costs no
  epsilon: a function of differentially private outputs is as private as they are (post-processing;
  Dwork and Roth, 2014, Proposition 2.1), and composition is adaptive, so that a round's mechanism
  may depend on all earlier releases. Its sensitivity is C whatever was chosen: the clip comes last.

  Attributes:
    dim: d.
    num_kept: k.
    mechanism: The options of the private sum.
    channel: Adds the noise to a client's private vector and encodes it as integers.
  """

  def __init__(
      self,
      sparsifier: sparsifiers.Sparsifier,
      mechanism: mechanism_lib.Mechanism,
      shapes: flattening.Shapes,
      make_channel: channel_lib.MakeChannel = channel_lib.make_channel,
  ):
    """Initializes.

    Args:
      sparsifier: Chooses the coordinates.
      mechanism: The options of the private sum.
      shapes: The shapes of the model's tensors.
      make_channel: Makes the channel.

    Raises:
      ValueError: If `mechanism.num_values` is not the length of a client's vector.
    """
    self.dim = flattening.dim(shapes)
    self.num_kept = sparsifier.num_kept(self.dim)
    self.mechanism = mechanism
    self._sparsifier = sparsifier
    self._shapes = list(shapes)
    self._scale = sparsifier.scale(self.dim)
    num_values = self.num_kept + (mechanism.adaptive_clipping is not None)
    mechanism.check_num_values(num_values)
    self.channel = make_channel(mechanism, num_values, self._scale)

  @property
  def measurements(self) -> list[str]:
    """The names of the measurements of `finish`, in its order."""
    names = ['participants', 'released']
    if self.mechanism.private:
      names.append('clipping_norm')
    if self.mechanism.noise_multiplier:
      names.append('signal_to_noise')
    return names

  def initial_state(self, seed: Optional[int]) -> state_lib.FedSmpState:
    """Returns the state before round 0, with no coordinates chosen yet (zeros).

    Args:
      seed: Seed of the masks, which are public; None: a fresh one.
    """
    state_seed = randomness.fresh_seed() if seed is None else randomness.of_run(seed)
    num_listed = 0 if self._sparsifier.keeps_all else self.num_kept
    return state_lib.FedSmpState(
        round_num=tf.constant(0),
        seed=tf.ensure_shape(state_seed, [2]),
        clipping_norm=self._scheduled_clipping_norm(tf.constant(0)),
        coordinates=tf.zeros([num_listed], tf.int32),
        memory=self._sparsifier.initial_memory(self.dim),
    )

  def choose(
      self,
      state: state_lib.FedSmpState,
      public_update: Optional[PublicUpdate] = None,
      anew: bool = False,
  ) -> state_lib.FedSmpState:
    """Returns `state` with its round's coordinates.

    Args:
      state: The state at the start of a round.
      public_update: Makes the update on the sparsifier's public data from the round's weights; None
        where there is none. It is not called in rounds that hold an earlier mask.
      anew: Whether to choose in the middle of the rounds that hold a mask, too.

    Raises:
      ValueError: If the sparsifier asks for a public update and there is none.
    """
    if self._sparsifier.keeps_all:
      return state
    seed = randomness.of_round(state.seed, state.round_num)
    context = sparsifiers.PublicContext(
        shapes=self._shapes,
        dim=self.dim,
        seed=seed,
        round_num=state.round_num,
        memory=state.memory,
        public_update=functools.partial(public_update or self._no_public_update, seed),
    )

    def chosen():
      return tf.ensure_shape(tf.sort(self._sparsifier.choose(context)), [self.num_kept])

    mask_rounds = self._sparsifier.mask_rounds
    if anew or mask_rounds == 1:
      return state._replace(coordinates=chosen())
    is_due = tf.equal(state.round_num % mask_rounds, 0)
    coordinates = tf.cond(is_due, chosen, lambda: state.coordinates)
    return state._replace(coordinates=tf.ensure_shape(coordinates, [self.num_kept]))

  def report(
      self, update: tf.Tensor, state: state_lib.FedSmpState, noise_seed: tf.Tensor
  ) -> channel_lib.Report:
    """Makes a client's report: mask, scale, clip, add its noise share, encode.

    A non-finite update counts as zero (its noise share is added all the same):
    the sum's noise stays right and no client can spoil it.

    Args:
      update: [d], float32 or float64.
      state: The state of the round.
      noise_seed: int64[2], a secret seed, different for each client and round.

    Returns:
      The report: the integers `values`, [channel.num_integers], and `participants`, 1. Nothing
      else leaves a client.
    """
    kept = update if self._sparsifier.keeps_all else tf.gather(update, state.coordinates)
    kept = tf.cast(kept, tf.float64) * self._scale
    # A NaN norm compares false, so the clip alone would let it through.
    finite = tf.reduce_all(tf.math.is_finite(kept))
    kept = tf.where(finite, kept, tf.zeros_like(kept))
    if self.mechanism.private:
      kept, clipped, empty = _clipped(kept, state.clipping_norm)
      kept = self._with_vote(kept, clipped, empty)
    values = self.channel.encode(kept, noise_seed, _public_seed(state))
    return collections.OrderedDict(values=values, participants=tf.constant(1))

  def secure_sum(self, reports: tff.Value) -> tff.Value:
    """Sums reports securely, within a `tff.federated_computation`."""
    return self.channel.secure_sum(reports)

  def sum(self, reports: list[channel_lib.Report]) -> channel_lib.Report:
    """Sums reports as `secure_sum` does, in TensorFlow, for audits and tests."""
    return collections.OrderedDict(
        values=self.channel.sum([report['values'] for report in reports]),
        participants=tf.add_n([report['participants'] for report in reports]),
    )

  def finish(
      self, total: channel_lib.Report, state: state_lib.FedSmpState
  ) -> tuple[tf.Tensor, state_lib.FedSmpState, Measurements]:
    """Makes the update of a round.

    Args:
      total: The secure sum of the reports.
      state: The state of the round.

    Returns:
      The update, float64[d], zero if the release is not valid; the state of the next round, whose
      coordinates are not yet chosen; and the measurements (`FedSmpFactory` lists them).
    """
    release, mean_vote = self._release(total, state)
    memory = tf.nest.map_structure(
        lambda new, old: tf.where(release.valid, new, old),
        self._sparsifier.remember(state.memory, release),
        state.memory,
    )
    next_state = state._replace(
        round_num=state.round_num + 1,
        clipping_norm=self._next_clipping_norm(state, mean_vote, release.valid),
        memory=memory,
    )
    update = release.values
    if not self._sparsifier.keeps_all:
      update = tf.scatter_nd(state.coordinates[:, tf.newaxis], release.values, [self.dim])
    return update, next_state, self._measured(total['participants'], release, state)

  def _no_public_update(self, seed):
    del seed
    name = type(self._sparsifier).__name__
    raise ValueError(
        f'`{name}` chooses coordinates by training on public data from the model\'s weights,'
        ' which an aggregator does not see, and needs examples to train on. Use'
        f' `fedsmp_tff.build_fed_smp`, and have `{name}.public_training` return them; or take'
        ' `RandK` or `ReleasedTopK` here.'
    )

  def _release(self, total, state) -> tuple[state_lib.Release, Optional[tf.Tensor]]:
    """Decodes a sum to the mean over the fixed r of clients; also the mean vote on C."""
    participants = total['participants']
    valid, check = self._enough(participants)
    # In TensorFlow functions the check runs by itself and `check` is None.
    with tf.control_dependencies([] if check is None else [check]):
      values = self.channel.decode_sum(total['values'], participants, _public_seed(state))
    values = tf.where(valid, values, tf.zeros_like(values))
    values, mean_vote = self._without_vote(values)
    if self.mechanism.private:
      values *= state.clipping_norm
    mean = values / self.mechanism.clients_per_round
    stddev = self._noise_stddev(participants, state.clipping_norm)
    coordinates = tf.range(self.dim) if self._sparsifier.keeps_all else state.coordinates
    return (
        state_lib.Release(coordinates, mean, tf.fill([self.num_kept], stddev), valid), mean_vote
    )

  def _enough(self, participants) -> tuple[tf.Tensor, Optional[tf.Operation]]:
    """Returns whether enough reported for a release, and a check that not too many did."""
    num_slots, least = self.mechanism.num_slots, self.mechanism.min_reports
    if least is None:
      check = tf.debugging.assert_equal(
          participants,
          num_slots,
          message=(
              f'The round must have exactly {num_slots} clients, one for each of its slots'
              ' (`clients_per_round`, or `num_slots`): the noise shares and the encoding are made'
              ' for that number. Run it with that many, or set `min_reports`.'
          ),
      )
      return tf.constant(True), check
    check = tf.debugging.assert_less_equal(
        participants,
        num_slots,
        message=(
            f'The round must have at most {num_slots} clients, one for each of its slots'
            ' (`clients_per_round`, or `num_slots`): the encoding is made for that number.'
        ),
    )
    return participants >= least, check

  def _noise_stddev(self, participants, clipping_norm) -> tf.Tensor:
    """Returns the standard deviation of the noise in each of the mean's clipped values."""
    mechanism = self.mechanism
    if not mechanism.noise_multiplier:
      return tf.constant(0.0, tf.float64)
    shares = tf.cast(participants, tf.float64) / mechanism.noise_shares
    stddev = clipping_norm * mechanism.values_noise_multiplier / mechanism.clients_per_round
    return stddev * tf.sqrt(shares)

  def _measured(self, participants, release, state) -> Measurements:
    measured = collections.OrderedDict(
        participants=participants, released=tf.cast(release.valid, tf.int32)
    )
    if self.mechanism.private:
      measured['clipping_norm'] = state.clipping_norm
    if self.mechanism.noise_multiplier:
      # The released mean's energy over that of its noise, less 1: all of it public.
      energy = self.num_kept * release.stddev[0] ** 2
      measured['signal_to_noise'] = tf.maximum(tf.reduce_sum(release.values**2) / energy - 1, 0.0)
    return measured

  # C: constant, scheduled, or moved by the clients' votes (`AdaptiveClipping`).

  def _scheduled_clipping_norm(self, round_num) -> tf.Tensor:
    """Returns C of a round, float64, where it does not adapt; infinite without clipping."""
    mechanism = self.mechanism
    norm = tf.constant(mechanism.clipping_norm if mechanism.private else math.inf, tf.float64)
    if mechanism.clipping_schedule is not None:
      norm *= tf.cast(mechanism.clipping_schedule(round_num), tf.float64)
    return norm

  def _with_vote(self, kept, clipped, empty) -> tf.Tensor:
    """Appends a client's vote on C to its values."""
    if self.mechanism.adaptive_clipping is None:
      return kept
    vote = tf.where(empty, 0.0, tf.where(clipped, -0.5, 0.5))
    vote = self.mechanism.vote_weight * tf.cast(vote, tf.float64)
    return tf.concat([self.mechanism.value_weight * kept, vote[tf.newaxis]], 0)

  def _without_vote(self, values) -> tuple[tf.Tensor, Optional[tf.Tensor]]:
    """Splits the sum of `_with_vote`'s vectors into that of the values and the mean vote."""
    mechanism = self.mechanism
    if mechanism.adaptive_clipping is None:
      return values, None
    mean_vote = values[-1] / (mechanism.vote_weight * mechanism.clients_per_round)
    return values[:-1] / mechanism.value_weight, mean_vote

  def _next_clipping_norm(self, state, mean_vote, valid) -> tf.Tensor:
    if mean_vote is None:
      return self._scheduled_clipping_norm(state.round_num + 1)
    log_factor = self.mechanism.adaptive_clipping.log_factor(mean_vote)
    return tf.where(valid, state.clipping_norm * tf.exp(log_factor), state.clipping_norm)


def _clipped(kept, clipping_norm) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Clips to norm C and divides by it; also whether the norm was more, and whether zero."""
  # Scaled by the largest value first, so that no square overflows.
  largest = tf.reduce_max(tf.abs(kept))
  direction = tf.math.divide_no_nan(kept, largest)
  length = tf.norm(direction)
  clipped = largest * length > clipping_norm
  kept = tf.where(clipped, direction / length, kept / clipping_norm)
  return kept, clipped, tf.logical_not(largest > 0)


def _public_seed(state: state_lib.FedSmpState) -> tf.Tensor:
  """Returns the seed of what a round's clients and server have in common beside the mask."""
  round_seed = randomness.of_round(state.seed, state.round_num)
  return randomness.derive(round_seed, randomness.Stream.ROTATION)
