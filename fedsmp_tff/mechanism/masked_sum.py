"""The mechanism: one client's report and the round's release (DP-spar to aggregate of Algorithm 1)."""

import collections
from collections.abc import Callable
import math
from typing import Optional

import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import adaptive_clipping
from fedsmp_tff.mechanism import channel
from fedsmp_tff.mechanism import lattice
from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.mechanism import state as state_lib

# Without clipping nothing bounds a value. Updates of networks stay far below
# this; the values that reach it are counted.
_DEFAULT_VALUE_BOUND = 16.0
# Beside every client's number, from which seeded processes derive its seed.
_ROTATION = -(2**62)


class MaskedPrivateSum:
  """The mechanism for vectors of a known length, as TensorFlow functions.

  `FedSmpFactory` and `build_fed_smp` both run these functions, so that there is
  one place where privacy is made.

  A client's report, all that leaves it, is an ordered dictionary of integers:
    values: [k], or so; the noisy values.
    participants: int32, 1.
  and only with `client_metrics`, exact and so outside of the guarantee:
    exact_clipped_clients: int32, 1 if the norm exceeded C.
    exact_non_finite_clients: int32, 1 if a kept value was NaN or infinite.
    exact_saturated_values: int64, values outside the encoded range.

  Attributes:
    dim: d.
    num_kept: k.
    channel: `Reals` or `Lattice`: noise and integers of a client's private vector, which
      is in units of C, or as it is without clipping.
    max_input: As a report, of Python integers: the largest that a client sends, which
      the secure sum checks (`values` only if sums don't wrap around).
  """

  def __init__(
      self,
      dim: int,
      sparsifier: sparsifiers.Sparsifier,
      *,
      clients_per_round: int,
      clipping_norm: Optional[float],
      noise_multiplier: float,
      seats: int,
      min_reporting: Optional[int],
      noise: str,
      bits: Optional[int],
      rotate: bool,
      value_bound: Optional[float],
      adaptive_clipping: Optional[adaptive_clipping.AdaptiveClipping],
      clipping_schedule: Optional[Callable[[tf.Tensor], tf.Tensor]],
      client_metrics: bool,
  ):
    self.dim = dim
    self.num_kept = sparsifier.num_kept(dim)
    self._sparsifier = sparsifier
    self._scale = sparsifier.scale(dim)
    self._clients_per_round = clients_per_round
    self._private = clipping_norm is not None
    self._noise_multiplier = noise_multiplier
    self._seats = seats
    self._min_reporting = min_reporting
    self._adaptive = adaptive_clipping
    self._clipping_norm = clipping_norm
    self._schedule = clipping_schedule
    self._client_metrics = client_metrics
    self._value_weight = 1.0
    if adaptive_clipping is not None:
      weights_of = (noise_multiplier, clients_per_round)
      self._value_weight = adaptive_clipping.value_weight(*weights_of)
      self._vote_weight = adaptive_clipping.vote_weight(*weights_of)
    num_values = self.num_kept + (adaptive_clipping is not None)
    shares = min_reporting or seats
    if not self._private:
      bound = (
          _DEFAULT_VALUE_BOUND * self._scale if value_bound is None else value_bound
      )
      self.channel = channel.Reals(num_values, channel.fixed_point(bits, bound, seats))
    elif noise == noise_lib.GAUSSIAN:
      self.channel = channel.Reals.of_unit_vectors(
          num_values, noise_multiplier, seats, shares, bits
      )
    else:
      self.channel = lattice.Lattice(
          noise, num_values, lattice.DEFAULT_BITS if bits is None else bits,
          noise_multiplier, clients_per_round, seats, shares, rotate,
      )
    self.max_input = collections.OrderedDict()
    if self.channel.modulus is None:
      self.max_input['values'] = self.channel.max_input
    self.max_input['participants'] = 1
    if client_metrics:
      self.max_input.update(
          exact_clipped_clients=1,
          exact_non_finite_clients=1,
          exact_saturated_values=self.num_kept,
      )

  @property
  def measurements(self) -> list[str]:
    """The names of what `finish` measures, in its order."""
    names = [name for name in self.max_input if name != 'values'] + ['released']
    if self._private:
      names.append('clipping_norm')
    if self._noise_multiplier:
      names.append('signal_to_noise')
    return names

  @property
  def values_noise_multiplier(self) -> float:
    """Of the k values alone: more than sigma if C adapts, since votes take a part."""
    return self._noise_multiplier / self._value_weight

  def clipping_norm(self, round_num: tf.Tensor) -> tf.Tensor:
    """C of a round, float64, where it does not adapt; infinite without clipping."""
    norm = tf.constant(self._clipping_norm if self._private else math.inf, tf.float64)
    if self._schedule is not None:
      norm *= tf.cast(self._schedule(round_num), tf.float64)
    return norm

  def report(
      self, update: tf.Tensor, state: state_lib.FedSmpState, noise_seed: tf.Tensor
  ) -> collections.OrderedDict[str, tf.Tensor]:
    """What one client sends: gather, scale, clip, add its noise share, encode.

    A non-finite update counts as zero (its noise share is added all the same):
    the sum's noise stays right and no client can spoil it.

    Args:
      update: [d], float32 or float64.
      state: The round's.
      noise_seed: int64[2], of this client and round alone.

    Returns:
      A report.
    """
    kept = tf.cast(
        self._sparsifier.gather(update, state.coordinates), tf.float64
    )
    kept *= self._scale
    # Who holds no data sends zero, whatever is guessed: else to join would move the sum by 2 C.
    absent = tf.reduce_all(tf.equal(kept, 0.0))  # `==` compares identities in TFF's graphs.
    if state.guess.shape[0]:
      kept -= tf.cast(state.guess, tf.float64)
    if state.factors.shape[0]:
      kept *= tf.cast(state.factors, tf.float64)
    kept = tf.where(absent, tf.zeros_like(kept), kept)
    # A NaN norm compares false, so the clip alone would let it through.
    finite = tf.reduce_all(tf.math.is_finite(kept))
    kept = tf.where(finite, kept, tf.zeros_like(kept))
    clipped = tf.constant(False)
    if self._private:
      # Scaled by the largest value first, so that no square overflows.
      largest = tf.reduce_max(tf.abs(kept))
      direction = tf.math.divide_no_nan(kept, largest)
      length = tf.norm(direction)
      clipped = largest * length > state.clipping_norm
      kept = tf.where(clipped, direction / length, kept / state.clipping_norm)
      if self._adaptive is not None:
        vote = tf.where(
            largest > 0, tf.where(clipped, -0.5, 0.5), 0.0
        )
        vote = self._vote_weight * tf.cast(vote, tf.float64)
        kept = tf.concat([self._value_weight * kept, vote[tf.newaxis]], 0)
    values, saturated = self.channel.encode(kept, noise_seed, _public_seed(state))
    report = collections.OrderedDict(values=values, participants=tf.constant(1))
    if self._client_metrics:
      report.update(
          exact_clipped_clients=tf.cast(clipped, tf.int32),
          exact_non_finite_clients=tf.cast(tf.logical_not(finite), tf.int32),
          exact_saturated_values=saturated,
      )
    return report

  def finish(
      self, total: collections.OrderedDict[str, tf.Tensor], state: state_lib.FedSmpState
  ) -> tuple[
      state_lib.Release, state_lib.FedSmpState, collections.OrderedDict[str, tf.Tensor]
  ]:
    """The mean over the fixed r of clients at the kept coordinates.

    Args:
      total: The secure sum of the reports.
      state: The round's.

    Returns:
      The release (zeros if fewer than `min_reporting` reported); the state of the next
      round, but for what `ServerChoices` chooses; and the measurements (`FedSmpFactory`).
    """
    participants = total['participants']
    if self._min_reporting is None:
      check = tf.debugging.assert_equal(
          participants,
          self._seats,
          message=(
              'The round had another number of clients than its'
              f' {self._seats} seats (`clients_per_round`, or `seats`), for which the'
              ' noise shares and the encoding are made; run it with exactly that many, or'
              ' set `min_reporting`.'
          ),
      )
      released = tf.constant(True)
    else:
      check = tf.debugging.assert_less_equal(
          participants,
          self._seats,
          message=(
              f'The round had more clients than its {self._seats} seats'
              ' (`clients_per_round`, or `seats`), for which the encoding is made.'
          ),
      )
      released = participants >= self._min_reporting
    # In TensorFlow functions the check runs by itself and `check` is None.
    with tf.control_dependencies([] if check is None else [check]):
      values = self.channel.decode_sum(
          total['values'], participants, _public_seed(state)
      )
    values = tf.where(released, values, tf.zeros_like(values))
    next_norm = self.clipping_norm(state.round_num + 1)
    if self._adaptive is not None:
      mean_vote = values[-1] / (self._vote_weight * self._clients_per_round)
      values = values[:-1] / self._value_weight
      next_norm = tf.where(
          released, self._adaptive.next(state.clipping_norm, mean_vote), state.clipping_norm
      )
    if self._private:
      values *= state.clipping_norm
    mean = values / self._clients_per_round
    stddev = self._noise_stddev(participants, state.clipping_norm)
    measurements = total.copy()
    del measurements['values']
    measurements['released'] = tf.cast(released, tf.int32)
    if self._private:
      measurements['clipping_norm'] = state.clipping_norm
    if self._noise_multiplier:
      # The released mean's energy over that of its noise, less 1: all of it public.
      energy = self.num_kept * stddev**2
      measurements['signal_to_noise'] = tf.maximum(tf.reduce_sum(mean**2) / energy - 1, 0.0)
    stddev = tf.fill([self.num_kept], stddev)
    if state.factors.shape[0]:
      factors = tf.cast(state.factors, tf.float64)
      mean, stddev = mean / factors, stddev / factors
    if state.guess.shape[0]:
      guess = tf.cast(state.guess, tf.float64)
      mean += tf.where(released, guess, tf.zeros_like(guess))
    coordinates = state.coordinates
    if not self._sparsifier.num_coordinates(self.dim):
      coordinates = tf.range(self.dim)
    return (
        state_lib.Release(coordinates, mean, stddev),
        state._replace(round_num=state.round_num + 1, clipping_norm=next_norm),
        measurements,
    )

  def _noise_stddev(self, participants, clipping_norm) -> tf.Tensor:
    """Of the noise in the mean of the clipped values, each of them."""
    if not self._noise_multiplier:
      return tf.constant(0.0, tf.float64)
    shares = tf.cast(participants, tf.float64) / (self._min_reporting or self._seats)
    stddev = clipping_norm * self.values_noise_multiplier / self._clients_per_round
    return stddev * tf.sqrt(shares)

  def secure_sum(self, reports: tff.Value) -> tff.Value:
    """The secure sum of reports, within a `tff.federated_computation`."""
    if self.channel.modulus is None:
      return tff.federated_secure_sum(reports, self.max_input)
    totals = collections.OrderedDict(
        values=tff.backends.mapreduce.federated_secure_modular_sum(
            reports['values'], self.channel.modulus
        )
    )
    for name, most in self.max_input.items():
      totals[name] = tff.federated_secure_sum(reports[name], most)
    return tff.federated_zip(totals)


def _public_seed(state: state_lib.FedSmpState) -> tf.Tensor:
  """The seed of what a round's clients and server have in common beside the mask."""
  round_seed = randomness.fold_in(state.seed, state.round_num)
  return randomness.fold_in(round_seed, tf.constant(_ROTATION, tf.int64))
