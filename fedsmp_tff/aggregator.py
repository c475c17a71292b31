"""The masked private sum, as one flat TFF aggregator."""

from collections.abc import Callable
import math
from typing import Optional

import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import flattening
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import adaptive_clipping
from fedsmp_tff.mechanism import masked_sum
from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.mechanism import state as state_lib
from fedsmp_tff.post_processing import filters
from fedsmp_tff.post_processing import preconditioning
from fedsmp_tff.post_processing import prediction as prediction_lib
from fedsmp_tff.post_processing import server_choices


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
      adaptive_clipping: Optional[adaptive_clipping.AdaptiveClipping] = None,
      clipping_schedule: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
      client_metrics: bool = False,
      preconditioner: Optional[preconditioning.Preconditioner] = None,
      prediction: Optional[prediction_lib.Prediction] = None,
      server_filter: Optional[filters.Filter] = None,
      seed: Optional[int] = None,
  ):
    """Initializes the factory.

    Args:
      sparsifier: Chooses the coordinates: `RandK`, `ReleasedTopK` or `Dense` (`TopK` and
        `HybridTopK`, which need the model, only in `fedsmp_tff.build_fed_smp`).
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
      clipping_schedule: Maps a round's number (int32 scalar, from 0) to a positive factor on
        `clipping_norm` in that round; None: 1. Noise is scaled to the round's C, so that
        epsilon is the same. Not with `adaptive_clipping`.
      client_metrics: Whether to sum the exact counts.
      preconditioner: Chooses factors on the k values, before the clip; None: none.
      prediction: Guesses what clients subtract before the clip; None: nothing.
      server_filter: Makes an update of a release and those before it; None: the release
        is the update.
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
        ('noise_multiplier', noise_multiplier), ('adaptive_clipping', adaptive_clipping),
        ('clipping_schedule', clipping_schedule),
        ('preconditioner', preconditioner), ('prediction', prediction),
    ):
      if value and clipping_norm is None:
        raise ValueError(
            f'`{name}`={value} needs a `clipping_norm`, which bounds what a client sends.'
            ' Found None.'
        )
    if adaptive_clipping and clipping_schedule:
      raise ValueError(
          '`clipping_schedule` and `adaptive_clipping` both set C; set one of them. Found'
          f' {clipping_schedule} and {adaptive_clipping}.'
      )
    if noise not in noise_lib.KINDS:
      raise ValueError(f'`noise` must be one of {noise_lib.KINDS}. Found {noise!r}.')
    if value_bound is not None and clipping_norm is not None:
      raise ValueError(
          f'`value_bound`={value_bound} is for no `clipping_norm`, which bounds values'
          f' by itself. Found {clipping_norm}.'
      )
    self._sparsifier = sparsifier
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
        clipping_schedule=clipping_schedule,
        client_metrics=client_metrics,
    )
    self._post_processing = dict(
        preconditioner=preconditioner, prediction=prediction, server_filter=server_filter
    )
    self._seed = seed
    self.mechanism(dim=2**31 - 1)  # Raises now what it would raise in `create`.

  @property
  def sparsifier(self) -> sparsifiers.Sparsifier:
    return self._sparsifier

  def mechanism(self, dim: int) -> masked_sum.MaskedPrivateSum:
    """The mechanism for vectors of `dim` coordinates."""
    return masked_sum.MaskedPrivateSum(dim, self._sparsifier, **self._options)

  def choices(self, shapes: flattening.Shapes) -> server_choices.ServerChoices:
    """What the server chooses for a model of tensors of these shapes."""
    return server_choices.ServerChoices(
        self._sparsifier, shapes, **self._post_processing
    )

  def initial_state(self, shapes: flattening.Shapes) -> state_lib.FedSmpState:
    """The state before round 0, nothing chosen yet (zeros)."""
    if self._seed is None:
      seed = randomness.fresh_seed()
    else:
      seed = randomness.fold_in(tf.zeros([2], tf.int64), self._seed)
    dim = flattening.dim(shapes)
    clipping_norm = self.mechanism(dim).clipping_norm(tf.constant(0))
    return self.choices(shapes).initial_state(seed, clipping_norm)

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
          ' `fedsmp_tff.build_fed_smp`; or take `RandK` or `ReleasedTopK` here.'
      )
    flattener = flattening.Flattener(value_type)
    mechanism = self.mechanism(flattener.dim)
    choices = self.choices(flattener.shapes)

    @tff.tensorflow.computation
    def initial_state():
      return choices.choose(self.initial_state(flattener.shapes))

    @tff.federated_computation
    def init_fn():
      return tff.federated_eval(initial_state, tff.SERVER)

    state_type = initial_state.type_signature.result

    @tff.tensorflow.computation(state_type)
    def message_to_clients(state):
      return state.message()

    @tff.tensorflow.computation(value_type, message_to_clients.type_signature.result)
    def report(value, state):
      return mechanism.report(
          flattener.flatten(value), state, randomness.fresh_seed()
      )

    @tff.tensorflow.computation(state_type, report.type_signature.result)
    def finish(state, total):
      release, state, measurements = mechanism.finish(total, state)
      update, state = choices.update(release, measurements['released'] > 0, state)
      return choices.choose(state), flattener.unflatten(update), measurements

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      message = tff.federated_broadcast(tff.federated_map(message_to_clients, state))
      reports = tff.federated_map(report, (value, message))
      total = mechanism.secure_sum(reports)
      new_state, mean, measurements = tff.federated_map(finish, (state, total))
      return tff.templates.MeasuredProcessOutput(new_state, mean, measurements)

    return tff.templates.AggregationProcess(init_fn, next_fn)
