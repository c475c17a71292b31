"""The masked private sum as a TFF aggregator, and one for clients' metrics that releases none."""

import collections
from typing import Any, Optional

import tensorflow_federated as tff

from fedsmp_tff import flattening
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import channel as channel_lib
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import round as round_lib


class FedSmpFactory(tff.aggregators.UnweightedAggregationFactory):
  """Computes the private mean of client updates on k shared coordinates (Fed-SMP, Algorithm 1).

  The created process runs `mechanism.round.FedSmpRound` on values of any structure of float32 and
  float64 tensors with d elements in total:

  * at CLIENTS: selects the k coordinates of the flat value (zeros unless all k are finite), scales
    them by d/k (`RandK` only) and clips them to L2 norm C; adds N(0, C^2 sigma^2 / m) to each, from
    a fresh seed, with m = `min_reports` or `num_slots`, and encodes them as integers
    (`GaussianChannel`), or rounds them first and adds integer noise (`LatticeChannel`);
  * in between: secure sums of k integers (one more for a vote on C) and of the number 1;
  * at SERVER: decodes, divides by r, puts the k values at their coordinates in the structure (zero
    elsewhere), and chooses the next round's coordinates.

  The release of a round is the Gaussian mechanism with noise multiplier sigma for adding or
  removing one client (sensitivity C), and sigma/2 for replacing one (sensitivity 2 C); for epsilon
  see `fedsmp_tff.PrivacySpec`. With Gaussian noise the guarantee holds in real arithmetic: the
  proof does not cover rounding of floats and of the encoding (at most `step`/2 per value). With
  integer noise it covers the integers of the reports.

  A round fails (`tf.errors.InvalidArgumentError` in this package's contexts) unless exactly
  `num_slots` participants report, including dummy participants without data
  (`sampling.PoissonSampler`): fewer noise shares would add up to less than the mechanism's noise.
  With `min_reports` each share is larger, so that this many shares suffice; with fewer participants
  nothing is released: the mean is zero, and C does not adapt.

  One round of three clients, with a mask of two of six coordinates:

  >>> import numpy as np
  >>> import tensorflow_federated as tff
  >>> import fedsmp_tff
  >>> factory = fedsmp_tff.FedSmpFactory(
  ...     fedsmp_tff.RandK(num=2),
  ...     fedsmp_tff.Mechanism(clients_per_round=3, clipping_norm=1.0, noise_multiplier=0.5),
  ... )
  >>> process = factory.create(tff.TensorType(np.float32, [6]))
  >>> with fedsmp_tff.runtime.local_context():
  ...   state = process.initialize()
  ...   output = process.next(state, [np.ones(6, np.float32)] * 3)
  >>> set(np.flatnonzero(output.result)) == set(state.coordinates)
  True
  >>> int(output.measurements['participants']), int(output.state.round_num)
  (3, 1)

  The state is a `FedSmpState`. The measurements are `participants` and `released` (1 or 0), which
  are exact, and private only if dropout does not depend on data; with clipping `clipping_norm`, the
  round's C; with noise `signal_to_noise`, an estimate from the release; with `extrapolate`
  `server_step`, a function of the release.
  """

  def __init__(
      self,
      sparsifier: sparsifiers.Sparsifier,
      mechanism: mechanism_lib.Mechanism,
      *,
      seed: Optional[int] = None,
      make_channel: channel_lib.MakeChannel = channel_lib.make_channel,
      extrapolate: bool = False,
  ):
    """Initializes the factory.

    Args:
      sparsifier: Choice of the coordinates: `RandK`, `ReleasedTopK` or `Dense`. `TopK`
        needs the model: use it in `fedsmp_tff.build_fed_smp`.
      mechanism: Options of the private sum, usually from `PrivacySpec.mechanism()`.
      seed: Seed of the public masks, not of the noise; None: a fresh seed at `initialize`.
      make_channel: A `Channel`'s class, or a function of the same arguments that makes a channel.
      extrapolate: Whether to multiply the mean by a step after FedExP (`mechanism.extrapolation`),
        which follows from the release and takes the place of a server learning rate; with clipping.

    Raises:
      TypeError: If `sparsifier` or `mechanism` has the wrong type.
    """
    if not isinstance(sparsifier, sparsifiers.Sparsifier):
      raise TypeError(f'`sparsifier` must be a Sparsifier. Found {type(sparsifier)}.')
    if not isinstance(mechanism, mechanism_lib.Mechanism):
      raise TypeError(
          '`mechanism` must be a Mechanism, such as `PrivacySpec.mechanism()`. Found'
          f' {type(mechanism)}.'
      )
    self.sparsifier = sparsifier
    self.mechanism = mechanism
    self.seed = seed
    self.extrapolate = extrapolate
    self._make_channel = make_channel

  def round(self, shapes: flattening.Shapes) -> round_lib.FedSmpRound:
    """Returns the steps of a round for tensors of these shapes."""
    return round_lib.FedSmpRound(
        self.sparsifier, self.mechanism, shapes, self._make_channel, self.extrapolate
    )

  def create(
      self, value_type: tff.Type, weight_type: Optional[tff.Type] = None
  ) -> tff.templates.AggregationProcess:
    """See `tff.aggregators.UnweightedAggregationFactory.create`.

    Args:
      value_type: The type of a client's value.
      weight_type: Must be None. Builders that do not check for a weighted aggregator, such as
        `tff.learning.algorithms.build_fed_sgd`, pass it.

    Raises:
      TypeError: If `value_type` is not a structure of float32 and float64 tensors of known shapes,
        or `weight_type` is set.
      ValueError: If the sparsifier needs the model's weights (`TopK`), k exceeds d, or
        `mechanism.noise.num_values` is not the length of a client's vector.
    """
    if weight_type is not None:
      raise TypeError(
          'FedSmpFactory takes no weights: a client of larger weight could move the sum by more'
          ' than the clip allows. Pass `tff.aggregators.as_weighted_aggregator(factory)`, which'
          f' gives all clients equal weight. Found weights of type {weight_type}.'
      )
    flattener = flattening.Flattener(value_type)
    steps = self.round(flattener.shapes)
    initial_state = tff.tensorflow.computation(lambda: steps.choose(steps.initial_state(self.seed)))
    state_type = initial_state.type_signature.result
    message_to_clients = tff.tensorflow.computation(lambda state: state.message(), state_type)

    @tff.tensorflow.computation(value_type, message_to_clients.type_signature.result)
    def report(value, state):
      return steps.report(flattener.flatten(value), state, randomness.fresh_seed())

    @tff.tensorflow.computation(state_type, report.type_signature.result)
    def finish(state, total):
      update, state, measurements = steps.finish(total, state)
      return steps.choose(state), flattener.unflatten(update), measurements

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER), tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, value):
      message = tff.federated_broadcast(tff.federated_map(message_to_clients, state))
      reports = tff.federated_map(report, (value, message))
      total = steps.channel.secure_sum(reports)
      new_state, mean, measurements = tff.federated_map(finish, (state, total))
      return tff.templates.MeasuredProcessOutput(new_state, mean, measurements)

    initialize = tff.federated_computation(lambda: tff.federated_eval(initial_state, tff.SERVER))
    return tff.templates.AggregationProcess(initialize, next_fn)


def no_client_metrics(
    metric_finalizers: Any, local_unfinalized_metrics_type: Any = None
) -> tff.Computation:
  """Aggregates clients' metrics to nothing, for `metrics_aggregator=` of stock processes.

  By default the processes of `tff.learning.algorithms` add each client's training loss and numbers
  of examples and batches in an insecure sum without noise. These are exact functions of clients'
  data, which no epsilon covers. The sums of TFF's `secure_sum_then_finalize` are exact too.

  Args:
    metric_finalizers: Not used: there is nothing to finalize.
    local_unfinalized_metrics_type: Not used.

  Returns:
    A computation that maps any metrics at clients to an empty `OrderedDict` at the server.
  """
  del metric_finalizers, local_unfinalized_metrics_type

  @tff.federated_computation
  def aggregate(client_metrics):
    del client_metrics  # They never leave the clients.
    return tff.federated_value(collections.OrderedDict(), tff.SERVER)

  return aggregate
