"""One round of Algorithm 1 as TensorFlow functions, in order of execution.

  server  choose              chooses the round's coordinates
  client  report              masks, clips, adds noise, encodes
          channel.secure_sum  adds the integers of all participants
  server  finish              decodes, makes an update of the release, and remembers it

`FedSmpFactory.create`, `build_fed_smp`, the audit and the tests run these functions.
"""

import collections
from collections.abc import Callable
import functools
import math
from typing import Optional

import tensorflow as tf

from fedsmp_tff import errors
from fedsmp_tff import flattening
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff import state as state_lib
from fedsmp_tff.mechanism import channel as channel_lib
from fedsmp_tff.mechanism import extrapolation
from fedsmp_tff.mechanism import mechanism as mechanism_lib

PublicUpdate = Callable[[tf.Tensor], tf.Tensor]  # From the round's public seed to an update [d].
Measurements = collections.OrderedDict[str, tf.Tensor]


class FedSmpRound:
  """Chooses coordinates, sums clients' masked values privately, and makes an update of the sum.

  The choice depends on releases, public data and public randomness, never on clients' data. It
  costs no epsilon: a function of differentially private outputs is as private as they are
  (post-processing; Dwork and Roth, 2014, Proposition 2.1), and composition is adaptive, so that a
  round's mechanism may depend on all earlier releases. The sensitivity is C for any choice, since
  clients clip the masked values.

  Attributes:
    dim: d.
    num_kept: k.
    mechanism: Options of the private sum.
    channel: Adds noise to a client's private vector and encodes it as integers.
  """

  def __init__(
      self,
      sparsifier: sparsifiers.Sparsifier,
      mechanism: mechanism_lib.Mechanism,
      shapes: flattening.Shapes,
      make_channel: channel_lib.MakeChannel = channel_lib.make_channel,
      extrapolate: bool = False,
  ):
    """Initializes the round; `shapes` has the shapes of the model's tensors, in order.

    Raises:
      ValueError: If `mechanism.noise` is not for the length of a client's vector, or `extrapolate`
        is set without clipping.
    """
    if extrapolate and not mechanism.private:
      raise ValueError(
          '`extrapolate`=True needs a `clipping_norm`, the norm of clipped updates. Found None.'
      )
    self.dim = sum(flattening.sizes(shapes))
    self.num_kept = sparsifier.num_kept(self.dim)
    self.mechanism = mechanism
    self._sparsifier = sparsifier
    self._extrapolate = extrapolate
    self._shapes = list(shapes)
    self._scale = sparsifier.scale(self.dim)
    num_values = self.num_kept + (mechanism.adaptive_clipping is not None)
    if mechanism.noise.num_values not in (None, num_values):
      raise ValueError(
          f'`num_values`={mechanism.noise.num_values} must be the number of values that clients send,'
          f' {num_values} (k, plus one for the vote of `adaptive_clipping`): epsilon of integer'
          f' noise depends on it. Set `noise=DiscreteGaussian({num_values})` in `PrivacySpec`.'
      )
    self.channel = make_channel(mechanism, num_values, self._scale)

  @property
  def measurements(self) -> list[str]:
    """Names of the measurements that `finish` returns, in order."""
    names = ['participants', 'released']
    if self.mechanism.private:
      names.append('clipping_norm')
    if self.mechanism.noise_multiplier:
      names.append('signal_to_noise')
    if self._extrapolate:
      names.append('server_step')
    return names

  def initial_state(self, seed: Optional[int]) -> state_lib.FedSmpState:
    """Returns the state before round 0, with zeros for coordinates until `choose`.

    Args:
      seed: Seed of the masks, which are public; None: a fresh seed.
    """
    state_seed = randomness.fresh_seed() if seed is None else randomness.run_seed(seed)
    num_listed = 0 if self._sparsifier.keeps_all else self.num_kept
    norm = self.mechanism.clipping_norm
    return state_lib.FedSmpState(
        round_num=tf.constant(0),
        seed=tf.ensure_shape(state_seed, [2]),
        clipping_norm=tf.constant(math.inf if norm is None else norm, tf.float64),
        coordinates=tf.zeros([num_listed], tf.int32),
        memory=self._sparsifier.initial_memory(self.dim),
    )

  def choose(
      self,
      state: state_lib.FedSmpState,
      public_update: Optional[PublicUpdate] = None,
      anew: bool = False,
  ) -> state_lib.FedSmpState:
    """Returns the state with the coordinates of its round.

    Args:
      state: The state at the start of a round.
      public_update: Function that returns the update on the sparsifier's public data from the
        round's weights; not called in rounds that hold an earlier mask. None: no public data.
      anew: Whether to choose also in rounds that hold an earlier mask.

    Raises:
      ValueError: If the sparsifier requests a public update and there is none.
      InvalidArgumentError: If coordinates repeat or are out of range, when the graph runs.
    """
    if self._sparsifier.keeps_all:
      return state
    seed = randomness.round_seed(state.seed, state.round_num)
    context = sparsifiers.PublicContext(
        shapes=self._shapes,
        dim=self.dim,
        seed=seed,
        round_num=state.round_num,
        memory=state.memory,
        public_update=functools.partial(public_update or self._no_public_update, seed),
    )

    def choose():
      coordinates = tf.ensure_shape(tf.sort(self._sparsifier.choose(context)), [self.num_kept])
      return self._check_coordinates(coordinates)

    mask_rounds = self._sparsifier.mask_rounds
    if anew or mask_rounds == 1:
      return state._replace(coordinates=choose())
    is_due = tf.equal(state.round_num % mask_rounds, 0)
    coordinates = tf.cond(is_due, choose, lambda: state.coordinates)
    return state._replace(coordinates=tf.ensure_shape(coordinates, [self.num_kept]))

  def report(
      self, update: tf.Tensor, state: state_lib.FedSmpState, noise_seed: tf.Tensor
  ) -> channel_lib.Report:
    """Returns a client's report: masks, scales, clips, adds a noise share, encodes.

    An update with a non-finite selected value counts as zero and still gets its noise share, so
    that the sum is finite and has its full noise.

    Args:
      update: float32[d] or float64[d].
      state: The state of the round.
      noise_seed: int64[2], a secret seed, different for each client and round.

    Returns:
      The integers `values`, [channel.num_integers], and `participants`, 1: all that a client sends.
    """
    kept = update if self._sparsifier.keeps_all else tf.gather(update, state.coordinates)
    kept = tf.cast(kept, tf.float64) * self._scale
    # A NaN norm compares false, so the clip alone would let it through.
    finite = tf.reduce_all(tf.math.is_finite(kept))
    kept = tf.where(finite, kept, tf.zeros_like(kept))
    if self.mechanism.private:
      kept, clipped, empty = _clip(kept, state.clipping_norm)
      kept = self._with_vote(kept, clipped, empty)
    values = self.channel.encode(kept, noise_seed, _public_seed(state))
    return collections.OrderedDict(values=values, participants=tf.constant(1))

  def sum(self, reports: list[channel_lib.Report]) -> channel_lib.Report:
    """Sums reports as `channel.secure_sum` does, in TensorFlow, for audits and tests."""
    return collections.OrderedDict(
        values=self.channel.sum([report['values'] for report in reports]),
        participants=tf.add_n([report['participants'] for report in reports]),
    )

  def finish(
      self, total: channel_lib.Report, state: state_lib.FedSmpState
  ) -> tuple[tf.Tensor, state_lib.FedSmpState, Measurements]:
    """Decodes the secure sum `total` of the reports.

    Returns:
      The update, float64[d], zero without a valid release; the state of the next round, its
      coordinates not yet chosen; and the measurements (see `FedSmpFactory`).
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
    measured = self._measure(total['participants'], release, state)
    update = release.values
    if self._extrapolate:
      update *= measured['server_step']
    if not self._sparsifier.keeps_all:
      update = tf.scatter_nd(state.coordinates[:, tf.newaxis], update, [self.dim])
    return update, next_state, measured

  def _check_coordinates(self, coordinates: tf.Tensor) -> tf.Tensor:
    """Returns ascending coordinates; their check fails if one repeats or is not in [0, d)."""
    distinct = tf.reduce_all(coordinates[1:] > coordinates[:-1])
    in_range = tf.logical_and(coordinates[0] >= 0, coordinates[-1] < self.dim)
    return errors.after_check(
        tf.logical_and(distinct, in_range),
        f'`{type(self._sparsifier).__name__}.choose` returned a coordinate twice or one that is not'
        f' from 0 to {self.dim - 1}, so that the mean would be wrong. It must return'
        f' {self.num_kept} distinct coordinates of that range.',
        coordinates,
    )

  def _no_public_update(self, seed):
    del seed
    name = type(self._sparsifier).__name__
    raise ValueError(
        f'`{name}` chooses coordinates by training on public data from the model\'s weights, which'
        ' an aggregator does not see, and needs examples. Use `fedsmp_tff.build_fed_smp`, and have'
        f' `{name}.public_training` return them; or use `RandK` or `ReleasedTopK` here.'
    )

  def _release(self, total, state) -> tuple[state_lib.Release, Optional[tf.Tensor]]:
    """Decodes a sum to the mean over r clients; also returns the mean vote on C."""
    participants, num_slots = total['participants'], self.mechanism.num_slots
    valid, fits = participants >= self.mechanism.min_reports, participants <= num_slots
    is_exact = self.mechanism.min_reports == num_slots
    encoded = errors.after_check(
        valid & fits if is_exact else fits,
        f'The round must have {"exactly" if is_exact else "at most"} {num_slots} participants, one'
        ' for each of `num_slots`, which `PrivacySpec.sampler` fills: the noise shares and the'
        ' encoding are sized for that number. Pass that number, or set `min_reports` below it.',
        total['values'],
    )
    values = self.channel.decode_sum(encoded, participants, _public_seed(state))
    values = tf.where(valid, values, tf.zeros_like(values))
    values, mean_vote = self._without_vote(values)
    if self.mechanism.private:
      values *= state.clipping_norm
    mean = values / self.mechanism.clients_per_round
    stddev = self._noise_stddev(participants, state.clipping_norm)
    coordinates = tf.range(self.dim) if self._sparsifier.keeps_all else state.coordinates
    stddevs = tf.fill([self.num_kept], stddev)
    return state_lib.Release(coordinates, mean, stddevs, valid), mean_vote

  def _noise_stddev(self, participants, clipping_norm) -> tf.Tensor:
    """Returns the standard deviation of the noise in each value of the mean."""
    mechanism = self.mechanism
    if not mechanism.noise_multiplier:
      return tf.constant(0.0, tf.float64)
    shares = tf.cast(participants, tf.float64) / mechanism.min_reports
    stddev = clipping_norm * mechanism.values_noise_multiplier / mechanism.clients_per_round
    return stddev * tf.sqrt(shares)

  def _measure(self, participants, release, state) -> Measurements:
    measured = collections.OrderedDict(
        participants=participants, released=tf.cast(release.valid, tf.int32)
    )
    if self.mechanism.private:
      measured['clipping_norm'] = state.clipping_norm
    if self.mechanism.noise_multiplier:
      # Energy of the released mean / energy of its noise - 1: a function of public numbers.
      energy = self.num_kept * release.stddev[0] ** 2
      measured['signal_to_noise'] = tf.maximum(tf.reduce_sum(release.values**2) / energy - 1, 0.0)
    if self._extrapolate:
      r = self.mechanism.clients_per_round
      measured['server_step'] = extrapolation.step(release, state.clipping_norm, r)
    return measured

  def _with_vote(self, kept, clipped, empty) -> tf.Tensor:
    """Appends a client's vote on C to its values."""
    if self.mechanism.adaptive_clipping is None:
      return kept
    vote = tf.where(empty, 0.0, tf.where(clipped, -0.5, 0.5))
    vote = self.mechanism.vote_weight * tf.cast(vote, tf.float64)
    return tf.concat([self.mechanism.value_weight * kept, vote[tf.newaxis]], 0)

  def _without_vote(self, values) -> tuple[tf.Tensor, Optional[tf.Tensor]]:
    """Splits the sum of the vectors of `_with_vote` into the sum of values and the mean vote."""
    mechanism = self.mechanism
    if mechanism.adaptive_clipping is None:
      return values, None
    mean_vote = values[-1] / (mechanism.vote_weight * mechanism.clients_per_round)
    return values[:-1] / mechanism.value_weight, mean_vote

  def _next_clipping_norm(self, state, mean_vote, valid) -> tf.Tensor:
    if mean_vote is None:
      return state.clipping_norm
    log_factor = self.mechanism.adaptive_clipping.log_factor(mean_vote)
    return tf.where(valid, state.clipping_norm * tf.exp(log_factor), state.clipping_norm)


def _clip(kept, clipping_norm) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Clips to norm C, divides by C; also returns whether the norm exceeded C, and was zero."""
  # Dividing by the largest value first keeps squares from overflowing.
  largest = tf.reduce_max(tf.abs(kept))
  direction = tf.math.divide_no_nan(kept, largest)
  length = tf.norm(direction)
  clipped = largest * length > clipping_norm
  # An adaptive C may underflow to 0, where 0 / 0 would be NaN and remove the noise.
  kept = tf.where(clipped, direction / length, tf.math.divide_no_nan(kept, clipping_norm))
  return kept, clipped, tf.logical_not(largest > 0)


def _public_seed(state: state_lib.FedSmpState) -> tf.Tensor:
  """Returns the public seed of a round's rotation."""
  round_seed = randomness.round_seed(state.seed, state.round_num)
  return randomness.derive(round_seed, randomness.Stream.ROTATION)
