"""The masked private sum, as one flat TFF aggregator: lines DP-spar to aggregate of Algorithm 1."""

import collections
from collections.abc import Callable
import math
from typing import Any, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import encoding
from fedsmp_tff import flattening
from fedsmp_tff import noise
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers

# Standard deviations of a noise share inside the encoded range: one share leaves
# it with probability 1.3e-15, so even 10^6 values of 10^5 clients rarely do.
_NOISE_TAIL = 8.0
# Without clipping nothing bounds a value. Updates of networks stay far below
# this; the values that reach it are counted.
_DEFAULT_VALUE_BOUND = 16.0


class FedSmpState(NamedTuple):
  """Server state of the aggregation.

  Attributes:
    coordinates: int32[k], this round's kept coordinates, ascending (int32[0] for
      `Dense`, which keeps all).
    round_num: int32, rounds that ended.
    seed: int64[2], from which every round's public random choices derive.
  """

  coordinates: Any
  round_num: Any
  seed: Any


class ClientReport(NamedTuple):
  """All that leaves a client, integers into one secure sum.

  Attributes:
    values: int32[k] (int64[k] if `bits` asks for it), the encoded noisy values.
    participants: int32, 1.
    clipped_clients: int32, 1 if the norm exceeded C.
    non_finite_clients: int32, 1 if a kept value was NaN or infinite.
    saturated_values: int64, values outside the encoded range.
  """

  values: Any
  participants: Any
  clipped_clients: Any
  non_finite_clients: Any
  saturated_values: Any


class MaskedPrivateSum:
  """The mechanism for vectors of a known length, as TensorFlow functions.

  `FedSmpFactory` and `build_fed_smp` both run these functions, so that there is
  one place where privacy is made.

  Attributes:
    dim: d.
    num_kept: k.
    encoding: The fixed point of the k values.
    max_input: A `ClientReport` of Python integers: the largest that a client
      sends, which the secure sum checks.
  """

  def __init__(
      self,
      dim: int,
      sparsifier: sparsifiers.Sparsifier,
      clients_per_round: int,
      clipping_norm: Optional[float],
      noise_multiplier: float,
      bits: Optional[int],
      value_bound: Optional[float],
  ):
    self.dim = dim
    self.num_kept = sparsifier.num_kept(dim)
    self._sparsifier = sparsifier
    self._scale = sparsifier.scale(dim)
    self._clients_per_round = clients_per_round
    self._clipping_norm = clipping_norm
    if clipping_norm is None:
      self._stddev = 0.0
      default_bound = _DEFAULT_VALUE_BOUND * self._scale
    else:
      self._stddev = noise.share_stddev(
          clipping_norm, noise_multiplier, clients_per_round
      )
      default_bound = clipping_norm + _NOISE_TAIL * self._stddev
    self.encoding = encoding.FixedPoint(
        bits=encoding.default_bits(clients_per_round) if bits is None else bits,
        value_bound=default_bound if value_bound is None else value_bound,
        clients_per_round=clients_per_round,
    )
    self.max_input = ClientReport(
        values=self.encoding.max_input,
        participants=1,
        clipped_clients=1,
        non_finite_clients=1,
        saturated_values=self.num_kept,
    )

  def report(
      self, update: tf.Tensor, coordinates: tf.Tensor, noise_seed: tf.Tensor
  ) -> ClientReport:
    """What one client sends: gather, scale, clip, add its noise share, encode.

    A non-finite update counts as zero (its noise share is added all the same):
    the sum's noise stays right and no client can spoil it.

    Args:
      update: [d], float32 or float64.
      coordinates: int32[k], the round's.
      noise_seed: int64[2], of this client and round alone.

    Returns:
      A `ClientReport`.
    """
    kept = tf.cast(self._sparsifier.gather(update, coordinates), tf.float64)
    kept *= self._scale
    # A NaN norm compares false, so the clip alone would let it through.
    finite = tf.reduce_all(tf.math.is_finite(kept))
    kept = tf.where(finite, kept, tf.zeros_like(kept))
    clipped = tf.constant(False)
    if self._clipping_norm is not None:
      # Scaled by the largest value first, so that no square overflows.
      largest = tf.reduce_max(tf.abs(kept))
      unit = tf.math.divide_no_nan(kept, largest)
      unit_norm = tf.norm(unit)
      clipped = largest * unit_norm > self._clipping_norm
      kept = tf.where(clipped, unit * (self._clipping_norm / unit_norm), kept)
    if self._stddev > 0:
      kept += noise.gaussian_share(self.num_kept, self._stddev, noise_seed)
    values, saturated = self.encoding.encode(kept)
    return ClientReport(
        values=values,
        participants=tf.constant(1),
        clipped_clients=tf.cast(clipped, tf.int32),
        non_finite_clients=tf.cast(tf.logical_not(finite), tf.int32),
        saturated_values=saturated,
    )

  def mean(
      self, total: ClientReport, coordinates: tf.Tensor
  ) -> tuple[tf.Tensor, collections.OrderedDict]:
    """The mean over the fixed r of clients, float64[d], zero off the mask.

    Args:
      total: The secure sum of the reports.
      coordinates: int32[k], the round's.

    Returns:
      The mean, and the measurements: how many clients took part, were clipped,
      were non-finite, and how many values left the encoded range.
    """
    check = tf.debugging.assert_equal(
        total.participants,
        self._clients_per_round,
        message=(
            'The round had another number of clients than `clients_per_round`='
            f'{self._clients_per_round}, for which the noise shares and the'
            ' encoding are made; run it with exactly that many.'
        ),
    )
    # In TensorFlow functions the check runs by itself and `check` is None.
    with tf.control_dependencies([] if check is None else [check]):
      values = self.encoding.decode_sum(total.values, total.participants)
    measurements = total._asdict()
    del measurements['values']
    return (
        self._sparsifier.scatter(
            values / self._clients_per_round, coordinates, self.dim
        ),
        collections.OrderedDict(measurements),
    )

  def secure_sum(self, reports: tff.Value) -> tff.Value:
    """The one secure sum, within a `tff.federated_computation`."""
    return tff.federated_secure_sum(reports, self.max_input)


class FedSmpFactory(tff.aggregators.UnweightedAggregationFactory):
  """Mean of client updates on k shared coordinates, private (Fed-SMP).

  The created process, for values of any structure of float32/float64 tensors with
  d elements in all:

  * at CLIENTS: flattens the value to [d] and gathers the round's k coordinates;
    multiplies by d/k (`RandK` only); if the result is not finite, takes zeros;
    scales it down to L2 norm C if its norm exceeds C; adds N(0, C^2 sigma^2 / r)
    to each of the k values, from a fresh seed; encodes them as integers of `bits`
    bits (`encoding.FixedPoint`);
  * between: ONE secure sum of int[k], with four counts;
  * at SERVER: decodes, divides by r, puts the k values at their coordinates in
    the structure (zero elsewhere), and chooses the next round's coordinates.

  Source: Hu, Guo, Gong, "Federated Learning with Sparsified Model Perturbation",
  Algorithm 1. Per round, the release is the Gaussian mechanism with noise
  multiplier sigma for adding or removing one client (sensitivity C), and sigma/2
  for replacing one (sensitivity 2 C); see `fedsmp_tff.accounting`. It is a
  guarantee in real arithmetic: rounding of floats and of the encoding (at most
  `step`/2 a value) is not part of the proof.

  Without DP (`clipping_norm` None) clients neither clip nor add noise; values are
  encoded in [-`value_bound`, `value_bound`].

  Exactly r clients must take part: with fewer, the noise shares would add up to
  less than the mechanism's noise, so the round fails instead.

  The process's state is `FedSmpState`. Its measurements are `participants`,
  `clipped_clients`, `non_finite_clients` and `saturated_values`: securely summed,
  but exact, so outside the differential privacy guarantee; keep them to yourself.
  """

  def __init__(
      self,
      sparsifier: sparsifiers.Sparsifier,
      clients_per_round: int,
      *,
      clipping_norm: Optional[float] = None,
      noise_multiplier: Optional[float] = None,
      bits: Optional[int] = None,
      value_bound: Optional[float] = None,
      seed: Optional[int] = None,
  ):
    """Initializes the factory.

    Args:
      sparsifier: Chooses the coordinates: `RandK` or `Dense` (`TopK` only in
        `fedsmp_tff.build_fed_smp`).
      clients_per_round: r, clients in every round.
      clipping_norm: C, the L2 norm to which a client's k values are clipped; None
        for no differential privacy.
      noise_multiplier: sigma; the sum's noise has standard deviation C sigma.
        None or 0 for none.
      bits: Bits of one client's integers; None: as many as let a sum over r
        clients fit in int32.
      value_bound: Largest magnitude of an encoded value; None: C plus eight
        standard deviations of the noise share, or without clipping 16 (times d/k
        for `RandK`).
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
    if clipping_norm is not None and not 0 < clipping_norm < math.inf:
      raise ValueError(
          f'`clipping_norm` must be positive and finite. Found {clipping_norm}.'
      )
    if noise_multiplier is not None and not 0 <= noise_multiplier < math.inf:
      raise ValueError(
          '`noise_multiplier` must be non-negative and finite. Found '
          f'{noise_multiplier}.'
      )
    if noise_multiplier and clipping_norm is None:
      raise ValueError(
          f'`noise_multiplier`={noise_multiplier} needs a `clipping_norm`, to'
          ' which the noise is scaled. Found None.'
      )
    self._sparsifier = sparsifier
    self._clients_per_round = clients_per_round
    self._clipping_norm = clipping_norm
    self._noise_multiplier = noise_multiplier or 0.0
    self._bits = bits
    self._value_bound = value_bound
    self._seed = seed
    self.mechanism(dim=2**31 - 1)  # Raises now what it would raise in `create`.

  @property
  def sparsifier(self) -> sparsifiers.Sparsifier:
    return self._sparsifier

  def mechanism(self, dim: int) -> MaskedPrivateSum:
    """The mechanism for vectors of `dim` coordinates."""
    return MaskedPrivateSum(
        dim,
        self._sparsifier,
        self._clients_per_round,
        self._clipping_norm,
        self._noise_multiplier,
        self._bits,
        self._value_bound,
    )

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

    @tff.tensorflow.computation(value_type, state_type.coordinates)
    def report(value, coordinates):
      return mechanism.report(
          flattener.flatten(value), coordinates, randomness.fresh_seed()
      )

    @tff.tensorflow.computation(state_type, report.type_signature.result)
    def finish(state, total):
      mean, measurements = mechanism.mean(total, state.coordinates)
      state = self.with_coordinates(
          state._replace(round_num=state.round_num + 1), flattener.dim
      )
      return state, flattener.unflatten(mean), measurements

    @tff.tensorflow.computation(state_type)
    def coordinates_of(state):
      return state.coordinates

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      coordinates = tff.federated_broadcast(
          tff.federated_map(coordinates_of, state)
      )
      reports = tff.federated_map(report, (value, coordinates))
      total = mechanism.secure_sum(reports)
      new_state, mean, measurements = tff.federated_map(finish, (state, total))
      return tff.templates.MeasuredProcessOutput(new_state, mean, measurements)

    return tff.templates.AggregationProcess(init_fn, next_fn)
