"""The mechanism: one client's report and the round's release (Algorithm 1 from DP-spar on)."""

import collections
from collections.abc import Callable
import dataclasses
import math
from typing import Optional

import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import channel as channel_lib
from fedsmp_tff.mechanism import lattice
from fedsmp_tff.mechanism import lattice_channel
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import state as state_lib

# Makes the channel of a mechanism for vectors of `num_values` values, which were
# multiplied by `scale`: (mechanism, num_values, scale).
MakeChannel = Callable[[mechanism_lib.Mechanism, int, float], channel_lib.Channel]


def make_channel(
    mechanism: mechanism_lib.Mechanism, num_values: int, scale: float
) -> channel_lib.Channel:
  """Makes the channel that `Mechanism.noise` names."""
  encoding = mechanism.encoding(num_values, scale)
  if isinstance(encoding, lattice.Lattice):
    return lattice_channel.LatticeChannel(**dataclasses.asdict(encoding))
  return channel_lib.GaussianChannel(
      **dataclasses.asdict(encoding), num_values=num_values, share_stddev=mechanism.share_stddev
  )


class MaskedPrivateSum:
  """The mechanism for vectors of a known length, as TensorFlow functions.

  `FedSmpFactory` and `build_fed_smp` both run these functions, so that there is
  one place where privacy is made.

  A client's report, all that leaves it, is an ordered dictionary of integers:
    values: [channel.num_integers], about k: the noisy values.
    participants: int32, 1.

  Attributes:
    dim: d.
    num_kept: k.
    mechanism: The options.
    channel: Adds the noise to a client's private vector and encodes it as integers.
  """

  def __init__(
      self,
      dim: int,
      sparsifier: sparsifiers.Sparsifier,
      mechanism: mechanism_lib.Mechanism,
      make_channel: MakeChannel = make_channel,
  ):
    """Initializes.

    Args:
      dim: d.
      sparsifier: Gathers and scales a client's kept values.
      mechanism: The options.
      make_channel: Makes the channel.

    Raises:
      ValueError: If `mechanism.num_values` is not what clients send.
    """
    self.dim = dim
    self.num_kept = sparsifier.num_kept(dim)
    self.mechanism = mechanism
    self._sparsifier = sparsifier
    self._scale = sparsifier.scale(dim)
    num_values = self.num_kept + (mechanism.adaptive_clipping is not None)
    mechanism.check_num_values(num_values)
    self.channel = make_channel(mechanism, num_values, self._scale)

  @property
  def measurements(self) -> list[str]:
    """The names of what `release` measures, in its order."""
    names = ['participants', 'released']
    if self.mechanism.private:
      names.append('clipping_norm')
    if self.mechanism.noise_multiplier:
      names.append('signal_to_noise')
    return names

  def clipping_norm(self, round_num: tf.Tensor) -> tf.Tensor:
    """Returns C of a round, float64, where it does not adapt; infinite without clipping."""
    mechanism = self.mechanism
    norm = tf.constant(mechanism.clipping_norm if mechanism.private else math.inf, tf.float64)
    if mechanism.clipping_schedule is not None:
      norm *= tf.cast(mechanism.clipping_schedule(round_num), tf.float64)
    return norm

  def report(
      self, update: tf.Tensor, state: state_lib.FedSmpState, noise_seed: tf.Tensor
  ) -> channel_lib.Report:
    """Makes what one client sends: gather, scale, clip, add its noise share, encode.

    A non-finite update counts as zero (its noise share is added all the same):
    the sum's noise stays right and no client can spoil it.

    Args:
      update: [d], float32 or float64.
      state: The state of the round.
      noise_seed: int64[2], a secret seed, different for each client and round.

    Returns:
      A report.
    """
    kept = self._sparsifier.gather(update, state.coordinates)
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

  def release(
      self, total: channel_lib.Report, state: state_lib.FedSmpState
  ) -> tuple[
      state_lib.Release, state_lib.FedSmpState, collections.OrderedDict[str, tf.Tensor]
  ]:
    """Makes the release: the mean over the fixed r of clients at the kept coordinates.

    Args:
      total: The secure sum of the reports.
      state: The state of the round.

    Returns:
      The release (zeros if fewer than `min_reporting` reported); the state of the next
      round, its coordinates not yet chosen; and the measurements
      (`FedSmpFactory` lists them).
    """
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
    measurements = collections.OrderedDict(
        participants=participants, released=tf.cast(valid, tf.int32)
    )
    if self.mechanism.private:
      measurements['clipping_norm'] = state.clipping_norm
    if self.mechanism.noise_multiplier:
      # The released mean's energy over that of its noise, less 1: all of it public.
      energy = self.num_kept * stddev**2
      measurements['signal_to_noise'] = tf.maximum(tf.reduce_sum(mean**2) / energy - 1, 0.0)
    coordinates = self._sparsifier.coordinates(state.coordinates, self.dim)
    next_norm = self.clipping_norm(state.round_num + 1)
    if mean_vote is not None:
      log_factor = self.mechanism.adaptive_clipping.log_factor(mean_vote)
      next_norm = tf.where(
          valid, state.clipping_norm * tf.exp(log_factor), state.clipping_norm
      )
    return (
        state_lib.Release(coordinates, mean, tf.fill([self.num_kept], stddev), valid),
        state._replace(round_num=state.round_num + 1, clipping_norm=next_norm),
        measurements,
    )

  def _with_vote(self, kept, clipped, empty) -> tf.Tensor:
    """Appends a client's vote on C to its values (`AdaptiveClipping`)."""
    if self.mechanism.adaptive_clipping is None:
      return kept
    vote = tf.where(empty, 0.0, tf.where(clipped, -0.5, 0.5))
    vote = self.mechanism.vote_weight * tf.cast(vote, tf.float64)
    return tf.concat([self.mechanism.value_weight * kept, vote[tf.newaxis]], 0)

  def _without_vote(self, values) -> tuple[tf.Tensor, Optional[tf.Tensor]]:
    """Parts the sum of `_with_vote`'s vectors into that of the values and the mean vote."""
    mechanism = self.mechanism
    if mechanism.adaptive_clipping is None:
      return values, None
    mean_vote = values[-1] / (mechanism.vote_weight * mechanism.clients_per_round)
    return values[:-1] / mechanism.value_weight, mean_vote

  def _enough(self, participants) -> tuple[tf.Tensor, Optional[tf.Operation]]:
    """Returns whether enough reported for a release, and a check that not too many did."""
    seats, least = self.mechanism.seats, self.mechanism.min_reporting
    if least is None:
      check = tf.debugging.assert_equal(
          participants,
          seats,
          message=(
              f'The round must have exactly {seats} clients, one for each of its seats'
              ' (`clients_per_round`, or `seats`): the noise shares and the encoding are made'
              ' for that number. Run it with that many, or set `min_reporting`.'
          ),
      )
      return tf.constant(True), check
    check = tf.debugging.assert_less_equal(
        participants,
        seats,
        message=(
            f'The round must have at most {seats} clients, one for each of its seats'
            ' (`clients_per_round`, or `seats`): the encoding is made for that number.'
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
