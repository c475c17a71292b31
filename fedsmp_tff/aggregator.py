"""The masked private sum, as one flat TFF aggregator: lines DP-spar to aggregate of Algorithm 1."""

import collections
from collections.abc import Callable
import math
from typing import Any, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import clipping
from fedsmp_tff import flattening
from fedsmp_tff import lattice
from fedsmp_tff import noise as noise_lib
from fedsmp_tff import randomness
from fedsmp_tff import reals
from fedsmp_tff import sparsifiers

# Without clipping nothing bounds a value. Updates of networks stay far below
# this; the values that reach it are counted.
_DEFAULT_VALUE_BOUND = 16.0
_DEFAULT_INTEGER_BITS = 16
# Beside every client's number, from which seeded processes derive its seed.
_ROTATION = -(2**62)


class FedSmpState(NamedTuple):
  """Server state of the aggregation; all of it is public.

  Attributes:
    coordinates: int32[k], this round's kept coordinates, ascending (int32[0] for
      `Dense`, which keeps all).
    round_num: int32, rounds that ended.
    seed: int64[2], from which every round's public random choices derive.
    clipping_norm: float64, this round's C; infinite without clipping.
  """

  coordinates: Any
  round_num: Any
  seed: Any
  clipping_norm: Any


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
      adaptive_clipping: Optional[clipping.AdaptiveClipping],
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
      self.channel = reals.Reals(num_values, reals.fixed_point(bits, bound, seats))
    elif noise == noise_lib.GAUSSIAN:
      self.channel = reals.Reals.of_unit_vectors(
          num_values, noise_multiplier, seats, shares, bits
      )
    else:
      self.channel = lattice.Lattice(
          noise, num_values, _DEFAULT_INTEGER_BITS if bits is None else bits,
          noise_multiplier, clients_per_round, seats, shares, rotate,
      )
    self.max_input = collections.OrderedDict(participants=1)
    if self.channel.modulus is None:
      self.max_input['values'] = self.channel.max_input
      self.max_input.move_to_end('values', last=False)
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

  def report(
      self, update: tf.Tensor, state: FedSmpState, noise_seed: tf.Tensor
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
      self, total: collections.OrderedDict[str, tf.Tensor], state: FedSmpState
  ) -> tuple[tf.Tensor, FedSmpState, collections.OrderedDict[str, tf.Tensor]]:
    """The mean over the fixed r of clients, float64[d], zero off the mask.

    Args:
      total: The secure sum of the reports.
      state: The round's.

    Returns:
      The mean (zero if fewer than `min_reporting` reported); the state of the next
      round, but for its coordinates; and the measurements (`FedSmpFactory`).
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
    next_norm = state.clipping_norm
    if self._adaptive is not None:
      mean_vote = values[-1] / (self._vote_weight * self._clients_per_round)
      values = values[:-1] / self._value_weight
      next_norm = tf.where(
          released, self._adaptive.next(next_norm, mean_vote), next_norm
      )
    if self._private:
      values *= state.clipping_norm
    mean = values / self._clients_per_round
    measurements = total.copy()
    del measurements['values']
    measurements['released'] = tf.cast(released, tf.int32)
    if self._private:
      measurements['clipping_norm'] = state.clipping_norm
    if self._noise_multiplier:
      measurements['signal_to_noise'] = self._signal_to_noise(
          mean, participants, state.clipping_norm
      )
    return (
        self._sparsifier.scatter(mean, state.coordinates, self.dim),
        state._replace(round_num=state.round_num + 1, clipping_norm=next_norm),
        measurements,
    )

  def _signal_to_noise(self, mean, participants, clipping_norm) -> tf.Tensor:
    """The released mean's energy over that of its noise, less 1: all of it public."""
    stddev = clipping_norm * self.values_noise_multiplier / self._clients_per_round
    shares = tf.cast(participants, tf.float64) / (self._min_reporting or self._seats)
    noise_energy = self.num_kept * stddev**2 * shares
    return tf.maximum(tf.reduce_sum(mean**2) / noise_energy - 1, 0.0)

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


def _public_seed(state: FedSmpState) -> tf.Tensor:
  """The seed of what a round's clients and server have in common beside the mask."""
  round_seed = randomness.fold_in(state.seed, state.round_num)
  return randomness.fold_in(round_seed, tf.constant(_ROTATION, tf.int64))


class FedSmpFactory(tff.aggregators.UnweightedAggregationFactory):
  """Mean of client updates on k shared coordinates, private (Fed-SMP).

  The created process, for values of any structure of float32/float64 tensors with
  d elements in all:

  * at CLIENTS: flattens the value to [d] and gathers the round's k coordinates;
    multiplies by d/k (`RandK` only); if the result is not finite, takes zeros;
    scales it down to L2 norm C if its norm exceeds C; adds N(0, C^2 sigma^2 / r)
    to each of the k values, from a fresh seed, and encodes them as integers of `bits`
    bits (`reals.Reals`); or, with `noise` of integers, rounds them first and adds
    integers (`lattice.Lattice`);
  * between: ONE secure sum of int[k] and the number of participants (integer noise:
    the former modulo 2^bits);
  * at SERVER: decodes, divides by r, puts the k values at their coordinates in
    the structure (zero elsewhere), and chooses the next round's coordinates.

  Source: Hu, Guo, Gong, "Federated Learning with Sparsified Model Perturbation",
  Algorithm 1. Per round, the release is the Gaussian mechanism with noise
  multiplier sigma for adding or removing one client (sensitivity C), and sigma/2
  for replacing one (sensitivity 2 C); see `fedsmp_tff.PrivacySpec`, whose
  `mechanism()` are arguments of this factory. With Gaussian noise it is a guarantee in
  real arithmetic: rounding of floats and of the encoding (at most `step`/2 a value)
  is not part of the proof. With integer noise it is one of the integers that are sent.

  Without DP (`clipping_norm` None) clients neither clip nor add noise; values are
  encoded in [-`value_bound`, `value_bound`].

  Exactly `seats` participants must take part, of whom those that hold no data send zero
  with their noise (`sampling.PoissonSampler`): with fewer, the noise shares would add up
  to less than the mechanism's noise, so the round fails instead. With `min_reporting`
  shares are larger, so that as few as that make enough; with fewer still nothing is
  released: the mean is zero and C stays.

  The process's state is `FedSmpState`. Its measurements, all public: `participants`;
  `released`, 1 or 0; `clipping_norm`, C of the round; `signal_to_noise`, estimated
  from the release; with `client_metrics` also `exact_clipped_clients`,
  `exact_non_finite_clients` and `exact_saturated_values`: securely summed, but exact, so
  outside the differential privacy guarantee; keep those to yourself.
  """

  def __init__(
      self,
      sparsifier: sparsifiers.Sparsifier,
      clients_per_round: int,
      *,
      clipping_norm: Optional[float] = None,
      noise_multiplier: Optional[float] = None,
      seats: Optional[int] = None,
      min_reporting: Optional[int] = None,
      noise: str = noise_lib.GAUSSIAN,
      bits: Optional[int] = None,
      rotate: bool = True,
      value_bound: Optional[float] = None,
      adaptive_clipping: Optional[clipping.AdaptiveClipping] = None,
      client_metrics: bool = False,
      seed: Optional[int] = None,
  ):
    """Initializes the factory.

    Args:
      sparsifier: Chooses the coordinates: `RandK` or `Dense` (`TopK` only in
        `fedsmp_tff.build_fed_smp`).
      clients_per_round: r, by which sums are divided: clients in every round, or
        expected, with Poisson sampling.
      clipping_norm: C, the L2 norm to which a client's k values are clipped; None
        for no differential privacy.
      noise_multiplier: sigma; the sum's noise has standard deviation C sigma at least.
        None or 0 for none.
      seats: Participants of a round, at least r; None: r.
      min_reporting: The fewest of them whose sum is released, for which noise shares are
        sized; None: exactly `seats` report, or the round fails.
      noise: `gaussian`, or `discrete_gaussian` or `skellam` for integers.
      bits: Bits of one client's integers; None: as many as let a sum over all seats
        fit in int32; 16 with integer noise.
      rotate: With integer noise: see `lattice.Lattice`.
      value_bound: Without clipping: largest magnitude of an encoded value; None: 16
        (times d/k for `RandK`).
      adaptive_clipping: How C changes over rounds, from `clipping_norm` on; None: not.
      client_metrics: Whether to sum the exact counts.
      seed: Of the masks, which are public; None: a fresh one at `initialize`.
        Noise never depends on it here.

    Raises:
      TypeError: If `sparsifier` is not a `Sparsifier`.
      ValueError: If a number is out of its range.
    """
    if not isinstance(sparsifier, sparsifiers.Sparsifier):
      raise TypeError(
          f'`sparsifier` must be a Sparsifier. Found {type(sparsifier)}.'
      )
    if not isinstance(clients_per_round, int) or clients_per_round < 1:
      raise ValueError(
          '`clients_per_round` must be a positive integer. Found '
          f'{clients_per_round}.'
      )
    seats = clients_per_round if seats is None else seats
    if not isinstance(seats, int) or seats < clients_per_round:
      raise ValueError(
          '`seats` must be an integer at least `clients_per_round`='
          f'{clients_per_round}. Found {seats}.'
      )
    if min_reporting is not None and not 1 <= min_reporting <= seats:
      raise ValueError(
          f'`min_reporting` must be from 1 to `seats`={seats}. Found {min_reporting}.'
      )
    if clipping_norm is not None and not 0 < clipping_norm < math.inf:
      raise ValueError(
          f'`clipping_norm` must be positive and finite. Found {clipping_norm}.'
      )
    if noise_multiplier is not None and not 0 <= noise_multiplier < math.inf:
      raise ValueError(
          '`noise_multiplier` must be non-negative and finite. Found '
          f'{noise_multiplier}.'
      )
    for name, value in (
        ('noise_multiplier', noise_multiplier), ('adaptive_clipping', adaptive_clipping)
    ):
      if value and clipping_norm is None:
        raise ValueError(
            f'`{name}`={value} needs a `clipping_norm`, to which the noise is scaled.'
            ' Found None.'
        )
    if noise not in noise_lib.KINDS:
      raise ValueError(f'`noise` must be one of {noise_lib.KINDS}. Found {noise!r}.')
    if value_bound is not None and clipping_norm is not None:
      raise ValueError(
          f'`value_bound`={value_bound} is for no `clipping_norm`, which bounds values'
          f' by itself. Found {clipping_norm}.'
      )
    self._sparsifier = sparsifier
    self._clipping_norm = clipping_norm
    self._options = dict(
        clients_per_round=clients_per_round,
        clipping_norm=clipping_norm,
        noise_multiplier=noise_multiplier or 0.0,
        seats=seats,
        min_reporting=min_reporting,
        noise=noise,
        bits=bits,
        rotate=rotate,
        value_bound=value_bound,
        adaptive_clipping=adaptive_clipping,
        client_metrics=client_metrics,
    )
    self._seed = seed
    self.mechanism(dim=2**31 - 1)  # Raises now what it would raise in `create`.

  @property
  def sparsifier(self) -> sparsifiers.Sparsifier:
    return self._sparsifier

  def mechanism(self, dim: int) -> MaskedPrivateSum:
    """The mechanism for vectors of `dim` coordinates."""
    return MaskedPrivateSum(dim, self._sparsifier, **self._options)

  def initial_state(self, dim: int) -> FedSmpState:
    """The state before round 0, its coordinates not chosen yet (zeros)."""
    if self._seed is None:
      seed = randomness.fresh_seed()
    else:
      seed = randomness.fold_in(tf.zeros([2], tf.int64), self._seed)
    return FedSmpState(
        coordinates=tf.zeros(
            [self._sparsifier.num_coordinates(dim)], tf.int32
        ),
        round_num=tf.constant(0),
        seed=tf.ensure_shape(seed, [2]),
        clipping_norm=tf.constant(
            math.inf if self._clipping_norm is None else self._clipping_norm,
            tf.float64,
        ),
    )

  def with_coordinates(
      self,
      state: FedSmpState,
      dim: int,
      public_update_fn: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
  ) -> FedSmpState:
    """`state` with the coordinates of its round chosen.

    Args:
      state: The state at the start of a round.
      dim: d.
      public_update_fn: For `TopK`: maps a seed int64[2] to the update [d] on
        public data from the round's weights.

    Returns:
      The state.
    """
    seed = randomness.fold_in(state.seed, state.round_num)
    if isinstance(self._sparsifier, sparsifiers.TopK):
      coordinates = self._sparsifier.select(public_update_fn(seed))
    elif isinstance(self._sparsifier, sparsifiers.RandK):
      coordinates = self._sparsifier.select(dim, seed)
    else:
      coordinates = state.coordinates
    return state._replace(coordinates=coordinates)

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """See `tff.aggregators.UnweightedAggregationFactory.create`.

    Raises:
      TypeError: If `value_type` is not a structure of float32 and float64 tensors
        of known shapes.
      ValueError: If the sparsifier needs the model's weights (`TopK`), or can't
        keep as many coordinates as it was asked to.
    """
    if isinstance(self._sparsifier, sparsifiers.TopK):
      raise ValueError(
          '`TopK` chooses coordinates by training on public data from the'
          ' model\'s weights, which an aggregator does not see. Use'
          ' `fedsmp_tff.build_fed_smp`, or the `RandK` sparsifier here.'
      )
    flattener = flattening.Flattener(value_type)
    mechanism = self.mechanism(flattener.dim)

    @tff.tensorflow.computation
    def initial_state():
      return self.with_coordinates(
          self.initial_state(flattener.dim), flattener.dim
      )

    @tff.federated_computation
    def init_fn():
      return tff.federated_eval(initial_state, tff.SERVER)

    state_type = initial_state.type_signature.result

    @tff.tensorflow.computation(value_type, state_type)
    def report(value, state):
      return mechanism.report(
          flattener.flatten(value), state, randomness.fresh_seed()
      )

    @tff.tensorflow.computation(state_type, report.type_signature.result)
    def finish(state, total):
      mean, state, measurements = mechanism.finish(total, state)
      state = self.with_coordinates(state, flattener.dim)
      return state, flattener.unflatten(mean), measurements

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      reports = tff.federated_map(report, (value, tff.federated_broadcast(state)))
      total = mechanism.secure_sum(reports)
      new_state, mean, measurements = tff.federated_map(finish, (state, total))
      return tff.templates.MeasuredProcessOutput(new_state, mean, measurements)

    return tff.templates.AggregationProcess(init_fn, next_fn)
