"""Fed-SMP, Algorithm 1 of the paper, as a `tff.learning.templates.LearningProcess`."""

import collections
from typing import Any, Optional
import warnings

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import aggregator as aggregator_lib
from fedsmp_tff import flattening
from fedsmp_tff import local_training
from fedsmp_tff import randomness
from fedsmp_tff import state as state_lib
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.runtime import graphs

# Operations that draw from a generator of the process. Others have an attribute `seed2`.
_RANDOM_OPS = frozenset([
    'NonDeterministicInts', 'RngReadAndSkip', 'RngSkip', 'StatefulRandomBinomial',
    'StatefulStandardNormal', 'StatefulStandardNormalV2', 'StatefulTruncatedNormal',
    'StatefulUniform', 'StatefulUniformFullInt', 'StatefulUniformInt',
])


class FedSmpProcess(tff.learning.templates.LearningProcess):
  """A learning process with what `program.loop.run` checks against the ledger.

  Attributes:
    mechanism: The options of its private sum.
    seeded: Whether its noise follows from a seed.
  """

  def __init__(
      self, *arguments: Any, mechanism: mechanism_lib.Mechanism, seeded: bool, **options: Any
  ):
    super().__init__(*arguments, **options)
    self.mechanism = mechanism
    self.seeded = seeded


def tag_client(
    client_id: int, dataset: tf.data.Dataset
) -> collections.OrderedDict[str, tf.data.Dataset]:
  """Returns one client's data for a process with `seed`, which derives randomness from the id.

  Args:
    client_id: Unique number of the client.
    dataset: The client's examples.
  """
  ids = tf.data.Dataset.from_tensors(tf.constant(client_id, tf.int64))
  return collections.OrderedDict(client_id=ids, examples=dataset)


def build_fed_smp(
    model: tff.learning.models.FunctionalModel,
    training: local_training.LocalTraining,
    aggregator: aggregator_lib.FedSmpFactory,
    *,
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    seed: Optional[int] = None,
) -> tff.learning.templates.LearningProcess:
  """Builds Algorithm 1 (Fed-SMP) as a learning process.

  In a round the server broadcasts weights and coordinates; each participant trains, and in the
  same `tff.tensorflow.computation` masks, clips, noises and encodes its update, so that only
  integers leave it; one secure sum adds them; the server applies the mean to the weights and
  chooses the next round's coordinates from the new weights, at the next round's learning rate.
  `initialize` chooses the first coordinates. For the mechanism, its guarantee and its
  measurements, which are the process's metrics under `aggregator`, see `FedSmpFactory`.

  >>> import fedsmp_tff
  >>> layers = [tf.keras.layers.InputLayer([3]), tf.keras.layers.Dense(2)]
  >>> model = tff.learning.models.functional_model_from_keras(
  ...     tf.keras.Sequential(layers),
  ...     tf.keras.losses.MeanSquaredError(),
  ...     (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2])),
  ... )
  >>> spec = fedsmp_tff.PrivacySpec(
  ...     population=100, clients_per_round=2, rounds=10, noise_multiplier=1.0,
  ...     clipping_norm=0.5, delta=1e-3, num_slots=5,
  ... )
  >>> process = fedsmp_tff.build_fed_smp(
  ...     model,
  ...     fedsmp_tff.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), 4, epochs=1),
  ...     fedsmp_tff.FedSmpFactory(fedsmp_tff.RandK(0.5), spec.mechanism()),
  ... )
  >>> dataset = tf.data.Dataset.from_tensor_slices((tf.ones([8, 3]), tf.ones([8, 2])))
  >>> with fedsmp_tff.runtime.local_context():
  ...   state = process.initialize()
  ...   output = process.next(state, [dataset] * spec.num_slots)
  >>> len(output.state.aggregator.coordinates)  # k, for d = 3 * 2 + 2.
  4

  The state is a `tff.learning.templates.LearningAlgorithmState`: `client_work` has the client
  optimizer's hyperparameters of the next round, `aggregator` is a `FedSmpState`, `finalizer` is the
  server optimizer's state. `get_hparams` and `set_hparams` give and take the hyperparameters of
  `client_work` and `finalizer`; a learning rate stays until the schedule, if any, sets the next.
  `set_model_weights` chooses a new mask.

  Args:
    model: A model with trainable weights in float32, or in float64 without momentum; its
      non-trainable weights stay constant, with a warning if they look like batch normalization's.
      `tff.learning.models.functional_model_from_keras` converts a Keras model.
    training: Local training of a client.
    aggregator: The masked private sum; here its sparsifier may also train on public data (`TopK`).
      `next` takes exactly `aggregator.mechanism.num_slots` clients, else it fails as
      `FedSmpFactory` says; a client without examples sends only its noise share.
    server_optimizer: Optimizer that applies the mean update, as a gradient, to the weights; None:
      SGD at learning rate 1, as in the paper.
    seed: Seed, for simulation only, that makes masks, the order of examples and the NOISE
      reproducible; order and noise follow from (seed, round, client id). `next` then takes
      `tag_client(id, dataset)` per client. Anyone who knows the seed can remove the noise. Random
      numbers that the model draws itself, as dropout does, do not follow from it: a warning says
      so. None: all randomness is fresh, except masks if `aggregator.seed` is set.

  Returns:
    The process. `next` takes a list of datasets of single (not batched) examples in the form of
    `model.input_spec` without its first dimension: pairs (x, y), or mappings with these keys.

  Raises:
    TypeError: If an argument has the wrong type.
    ValueError: If a number is out of range, the optimizer does not fit the schedule, examples are
      neither pairs nor mappings with the keys 'x' and 'y', `mechanism.noise` is of another length, or the
      sparsifier requests a public update and has no public data.
  """
  if server_optimizer is None:
    server_optimizer = tff.learning.optimizers.build_sgdm(1.0)
  from_keras = '; convert a Keras model with `tff.learning.models.functional_model_from_keras`'
  for name, value, kind, remedy in (
      ('model', model, tff.learning.models.FunctionalModel, from_keras),
      ('training', training, local_training.LocalTraining, ''),
      ('aggregator', aggregator, aggregator_lib.FedSmpFactory, ''),
      ('server_optimizer', server_optimizer, tff.learning.optimizers.Optimizer, ' of TFF'),
  ):
    if not isinstance(value, kind):
      raise TypeError(f'`{name}` must be a `{kind.__name__}`{remedy}. Found {type(value)}.')
  local_training.warn_about_batch_norm(model.initial_weights[1])
  steps = _Algorithm1(model, training, aggregator, server_optimizer, seed)

  initial_state = tff.tensorflow.computation(steps.initial_state)
  state_type = initial_state.type_signature.result
  message_to_clients = tff.tensorflow.computation(steps.message, state_type)
  client_report = tff.tensorflow.computation(
      steps.client_report, (steps.data_type, message_to_clients.type_signature.result)
  )
  if seed is not None and (names := _random_ops(client_report)):
    warnings.warn(
        f'The model draws random numbers in training ({", ".join(names)}), and these do not follow'
        ' from `seed`: two runs with this seed will differ. Remove layers such as dropout to make'
        ' them equal.',
        stacklevel=2,
    )
  finish_round = tff.tensorflow.computation(
      steps.finish_round, (state_type, client_report.type_signature.result)
  )
  get_hparams = tff.tensorflow.computation(steps.get_hparams, state_type)

  @tff.federated_computation(
      tff.FederatedType(state_type, tff.SERVER), tff.FederatedType(steps.data_type, tff.CLIENTS)
  )
  def next_fn(state, client_data):
    message = tff.federated_broadcast(tff.federated_map(message_to_clients, state))
    reports = tff.federated_map(client_report, (client_data, message))
    total = steps.round.channel.secure_sum(reports)
    return tff.learning.templates.LearningProcessOutput(
        *tff.federated_map(finish_round, (state, total))
    )

  return FedSmpProcess(
      tff.federated_computation(lambda: tff.federated_eval(initial_state, tff.SERVER)),
      next_fn,
      tff.tensorflow.computation(lambda state: state.global_model_weights, state_type),
      tff.tensorflow.computation(steps.set_model_weights, (state_type, steps.weights_type)),
      get_hparams_fn=get_hparams,
      set_hparams_fn=tff.tensorflow.computation(
          steps.set_hparams, (state_type, get_hparams.type_signature.result)
      ),
      mechanism=aggregator.mechanism,
      seeded=seed is not None,
  )


def _random_ops(comp: tff.framework.ConcreteComputation) -> list[str]:
  """Returns the names of operations of a computation that draw from a generator of the process."""
  content = tff.framework.serialize_computation(comp).tensorflow.graph_def.value
  graph_def = tf.compat.v1.GraphDef.FromString(content)
  nodes = graphs.all_nodes(graph_def)
  return sorted({n.op for n in nodes if n.op in _RANDOM_OPS or 'seed2' in n.attr})


class _Algorithm1:
  """The steps of the learning process, as TensorFlow functions."""

  def __init__(self, model, training, aggregator, server_optimizer, seed):
    self._model = model
    self._training = training
    self._server_optimizer = server_optimizer
    self._seed = seed
    self._mask_seed = aggregator.seed if seed is None else seed
    self.weights_type = tff.tensorflow.computation(self._initial_weights).type_signature.result
    self._flattener = flattening.Flattener(self.weights_type.trainable)
    self.round = aggregator.round(self._flattener.shapes)
    self.data_type = local_training.examples_type(model)
    if seed is not None:  # `tag_client` makes the data.
      self.data_type = tff.StructWithPythonType(
          [('client_id', tff.SequenceType(np.int64)), ('examples', self.data_type)],
          collections.OrderedDict,
      )
    self._train = local_training.TracedTraining(training, model)
    self._public = public = aggregator.sparsifier.public_training()
    if public is not None:
      self._public_update = local_training.PublicUpdate(self._train, public, self._flattener)

  def initial_state(self) -> tff.learning.templates.LearningAlgorithmState:
    weights = self._initial_weights()
    specs = tff.types.type_to_tf_tensor_specs(self.weights_type.trainable)
    hparams = self._training.initial_hparams(specs)
    return tff.learning.templates.LearningAlgorithmState(
        global_model_weights=weights,
        distributor=(),
        client_work=hparams,
        aggregator=self._choose(self.round.initial_state(self._mask_seed), weights, hparams),
        finalizer=self._server_optimizer.initialize(specs),
    )

  def message(self, state) -> tuple[Any, Any, state_lib.FedSmpState]:
    return state.global_model_weights, state.client_work, state.aggregator.message()

  def client_report(self, data, message) -> collections.OrderedDict[str, tf.Tensor]:
    """Trains (ClientUpdate), then makes the report (DP-spar)."""
    weights, hparams, state = message
    if self._seed is None:
      client_seed, examples = randomness.fresh_seed(), data
    else:
      round_seed = randomness.round_seed(state.seed, state.round_num)
      client_seed = randomness.client_seed(round_seed, data['client_id'].get_single_element())
      examples = data['examples']
    examples = self._training.draw(
        local_training.examples_of(examples),
        randomness.derive(client_seed, randomness.Stream.DRAW),
    )
    update = self._train(
        weights, examples, hparams, randomness.derive(client_seed, randomness.Stream.ORDER)
    )
    return self.round.report(
        self._flattener.flatten(update),
        state,
        randomness.derive(client_seed, randomness.Stream.NOISE),
    )

  def finish_round(self, state, total) -> tuple[
      tff.learning.templates.LearningAlgorithmState, collections.OrderedDict[str, Any]
  ]:
    """Applies the mean to the weights, and chooses the next round's coordinates."""
    update, aggregation, measurements = self.round.finish(total, state.aggregator)
    finalizer, trainable = self._server_optimizer.next(
        state.finalizer,
        state.global_model_weights.trainable,
        self._flattener.unflatten(update),
    )
    non_trainable = state.global_model_weights.non_trainable
    weights = tff.learning.models.ModelWeights(trainable, non_trainable)
    hparams = self._training.hparams_of_round(state.client_work, aggregation.round_num)
    next_state = state._replace(
        global_model_weights=weights,
        client_work=hparams,
        aggregator=self._choose(aggregation, weights, hparams),
        finalizer=finalizer,
    )
    return next_state, collections.OrderedDict(aggregator=measurements)

  def set_model_weights(self, state, weights) -> tff.learning.templates.LearningAlgorithmState:
    return state._replace(
        global_model_weights=weights,
        # Top-k coordinates depend on the weights.
        aggregator=self._choose(state.aggregator, weights, state.client_work, anew=True),
    )

  def get_hparams(self, state) -> collections.OrderedDict[str, Any]:
    return collections.OrderedDict(
        client_work=state.client_work,
        finalizer=self._server_optimizer.get_hparams(state.finalizer),
    )

  def set_hparams(self, state, hparams) -> tff.learning.templates.LearningAlgorithmState:
    return state._replace(
        client_work=hparams['client_work'],
        finalizer=self._server_optimizer.set_hparams(state.finalizer, hparams['finalizer']),
    )

  def _initial_weights(self) -> tff.learning.models.ModelWeights:
    return tff.learning.models.ModelWeights(
        *tf.nest.map_structure(tf.convert_to_tensor, self._model.initial_weights)
    )

  def _choose(
      self, state: state_lib.FedSmpState, weights, hparams, anew: bool = False
  ) -> state_lib.FedSmpState:
    def public_update(seed):
      return self._public_update(weights, hparams, state.clipping_norm, seed)

    return self.round.choose(state, public_update if self._public else None, anew)
