"""Fed-SMP and its five siblings as `tff.learning.templates.LearningProcess`es."""

import collections
import functools
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import aggregator
from fedsmp_tff import client_training
from fedsmp_tff import flattening
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import state as state_lib

# Independent streams from one seed.
_ORDER, _NOISE, _DROPOUT = 0, 1, 2


def tag_client(
    client_id: int, dataset: tf.data.Dataset
) -> collections.OrderedDict[str, tf.data.Dataset]:
  """One client's data for a seeded process, which derives its randomness from the id.

  Args:
    client_id: A number that no other client has.
    dataset: The client's examples.

  Returns:
    What a process built with `seed` takes as one client's data.
  """
  return collections.OrderedDict(
      client_id=tf.data.Dataset.from_tensors(
          tf.constant(client_id, tf.int64)
      ),
      examples=dataset,
  )


def build_fed_smp(
    model: tff.learning.models.FunctionalModel,
    training: client_training.LocalTraining,
    sparsifier: sparsifiers.Sparsifier,
    *,
    clients_per_round: int,
    clipping_norm: Optional[float],
    noise_multiplier: Optional[float],
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    dropout: float = 0.0,
    seed: Optional[int] = None,
    **mechanism_options: Any,
) -> tff.learning.templates.LearningProcess:
  """Algorithm 1 (Fed-SMP) as a learning process.

  A round: the server broadcasts weights and this round's coordinates; each of
  the round's participants trains, and in the same `tff.tensorflow.computation` masks,
  clips, noises and encodes its update, so that only integers leave it; one secure sum; the server applies the mean to the weights and chooses
  the next round's coordinates from the new weights, at the next round's learning
  rate. `initialize` chooses the first ones. See `FedSmpFactory` for the mechanism,
  its guarantee and its measurements, which are the process's metrics under
  `aggregator`.

  The state is a `tff.learning.templates.LearningAlgorithmState`: `client_work`
  holds the client optimizer's hyperparameters of the round to come, `aggregator`
  a `FedSmpState`, `finalizer` the server optimizer's state. `get_hparams` and
  `set_hparams` give and take `client_work` and `finalizer` hyperparameters; a
  learning rate set so holds until the schedule, if there is one, sets the next.

  Args:
    model: Its trainable weights are float32 or float64; the non-trainable ones
      stay as they are. For a Keras model:
      `tff.learning.models.functional_model_from_keras`.
    training: How a client trains.
    sparsifier: `RandK`, `TopK`, `ReleasedTopK`, `HybridTopK` or `Dense`.
    clients_per_round: r; `next` takes exactly that many clients, or `seats`, if that is
      among the `mechanism_options`. A client without examples sends its noise alone.
    clipping_norm: C; None for no differential privacy.
    noise_multiplier: sigma; None or 0 for no noise.
    server_optimizer: Applies the mean update, as a gradient, to the weights;
      None: SGD at learning rate 1, as in the paper.
    dropout: For simulation only: the probability that a participant trains and never
      reports, independently.
    seed: For simulation only: makes masks, the order of examples and the NOISE
      reproducible, the latter two from (seed, round, client id). `next` then takes
      `tag_client(id, dataset)` for each client. Who knows the seed can remove the
      noise. None: all of it is fresh.
    **mechanism_options: The other ones of `FedSmpFactory`: `seats`, `min_reporting`,
      `noise`, `bits`, ...

  Returns:
    The process. `next` takes a list of datasets of single (not batched)
    examples `(x, y)`, as `model.input_spec` describes less its first dimension.

  Raises:
    TypeError: If an argument is of the wrong kind.
    ValueError: If a number is out of its range, or the schedule and the optimizer
      don't fit.
  """
  if not isinstance(model, tff.learning.models.FunctionalModel):
    raise TypeError(
        '`model` must be a `tff.learning.models.FunctionalModel`; convert a Keras'
        ' model with `tff.learning.models.functional_model_from_keras`. Found '
        f'{type(model)}.'
    )
  if not isinstance(training, client_training.LocalTraining):
    raise TypeError(
        f'`training` must be a `LocalTraining`. Found {type(training)}.'
    )
  if server_optimizer is None:
    server_optimizer = tff.learning.optimizers.build_sgdm(1.0)
  if not isinstance(server_optimizer, tff.learning.optimizers.Optimizer):
    raise TypeError(
        '`server_optimizer` must be a `tff.learning.optimizers.Optimizer`. Found '
        f'{type(server_optimizer)}.'
    )
  factory = aggregator.FedSmpFactory(
      sparsifier,
      clients_per_round,
      clipping_norm=clipping_norm,
      noise_multiplier=noise_multiplier,
      seed=seed,
      **mechanism_options,
  )
  if not 0 <= dropout < 1:
    raise ValueError(f'`dropout` must be in [0, 1). Found {dropout}.')

  @tff.tensorflow.computation
  def initial_weights():
    return tff.learning.models.ModelWeights(
        *tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
    )

  weights_type = initial_weights.type_signature.result
  flattener = flattening.Flattener(weights_type.trainable)
  mechanism = factory.mechanism(flattener.dim)
  choices = factory.choices(flattener.shapes)
  example_type = tff.types.tensorflow_to_type(
      client_training.element_spec(model)
  )
  data_type = tff.SequenceType(example_type)
  if seed is not None:
    data_type = tff.StructWithPythonType(
        [('client_id', tff.SequenceType(np.int64)), ('examples', data_type)],
        collections.OrderedDict,
    )

  def public_update(weights, hparams, seed):
    examples = tf.nest.map_structure(tf.constant, sparsifier.public_examples)
    return flattener.flatten(
        sparsifier.local_training(training).train(
            model, weights, examples, hparams, seed
        )
    )

  @functools.cache
  def traced_public_update():
    # One trace for the three computations that choose: it is their longest part.
    weights = tff.types.type_to_tf_tensor_specs(weights_type)
    hparams = training.initial_hparams(weights.trainable)
    return tf.function(public_update, autograph=False).get_concrete_function(
        weights,
        tf.nest.map_structure(lambda h: tf.TensorSpec(h.shape, h.dtype), hparams),
        tf.TensorSpec([2], tf.int64),
    )

  def with_choices(state: state_lib.FedSmpState, weights, hparams):
    return choices.choose(
        state, lambda seed: traced_public_update()(weights, hparams, seed)
    )

  def initial_state_fn(weights):
    specs = tff.types.type_to_tf_tensor_specs(weights_type.trainable)
    hparams = training.initial_hparams(specs)
    return tff.learning.templates.LearningAlgorithmState(
        global_model_weights=weights,
        distributor=(),
        client_work=hparams,
        aggregator=with_choices(
            factory.initial_state(flattener.shapes), weights, hparams
        ),
        finalizer=server_optimizer.initialize(specs),
    )

  @tff.tensorflow.computation
  def initial_state():
    return initial_state_fn(initial_weights())

  state_type = initial_state.type_signature.result

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(initial_state, tff.SERVER)

  @tff.tensorflow.computation(state_type)
  def message_to_clients(state):
    return state.global_model_weights, state.client_work, state.aggregator.message()

  @tff.tensorflow.computation(
      data_type, message_to_clients.type_signature.result
  )
  def client_report(data, message):
    weights, hparams, state = message
    if seed is None:
      client_seed = randomness.fresh_seed()
      examples = data
    else:
      client_id = data['client_id'].get_single_element()
      round_seed = randomness.fold_in(state.seed, state.round_num)
      client_seed = randomness.fold_in(round_seed, client_id)
      examples = data['examples']
    update = training.train(
        model,
        weights,
        client_training.examples_of(examples),
        hparams,
        randomness.fold_in(client_seed, _ORDER),
    )
    report = mechanism.report(
        flattener.flatten(update), state, randomness.fold_in(client_seed, _NOISE)
    )
    if not dropout:
      return report
    # A report of zeros adds nothing, as one that never came.
    reports = dropout <= tf.random.stateless_uniform(
        [], randomness.fold_in(client_seed, _DROPOUT)
    )
    return tf.nest.map_structure(lambda t: tf.where(reports, t, 0), report)

  @tff.tensorflow.computation(state_type, client_report.type_signature.result)
  def finish_round(state, total):
    release, aggregation, measurements = mechanism.finish(total, state.aggregator)
    update, aggregation = choices.update(
        release, measurements['released'] > 0, aggregation
    )
    finalizer, trainable = server_optimizer.next(
        state.finalizer,
        state.global_model_weights.trainable,
        flattener.unflatten(update),
    )
    weights = tff.learning.models.ModelWeights(
        trainable, state.global_model_weights.non_trainable
    )
    hparams = training.hparams_of_round(
        state.client_work, aggregation.round_num
    )
    return (
        tff.learning.templates.LearningAlgorithmState(
            global_model_weights=weights,
            distributor=(),
            client_work=hparams,
            aggregator=with_choices(aggregation, weights, hparams),
            finalizer=finalizer,
        ),
        collections.OrderedDict(aggregator=measurements),
    )

  @tff.federated_computation(
      tff.FederatedType(state_type, tff.SERVER),
      tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, client_data):
    message = tff.federated_broadcast(
        tff.federated_map(message_to_clients, state)
    )
    reports = tff.federated_map(client_report, (client_data, message))
    total = mechanism.secure_sum(reports)
    return tff.learning.templates.LearningProcessOutput(
        *tff.federated_map(finish_round, (state, total))
    )

  @tff.tensorflow.computation(state_type)
  def get_model_weights(state):
    return state.global_model_weights

  @tff.tensorflow.computation(state_type, weights_type)
  def set_model_weights(state, weights):
    return state._replace(
        global_model_weights=weights,
        # Top-k coordinates are a function of the weights.
        aggregator=with_choices(
            state.aggregator, weights, state.client_work
        ),
    )

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    return collections.OrderedDict(
        client_work=state.client_work,
        finalizer=server_optimizer.get_hparams(state.finalizer),
    )

  @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
  def set_hparams(state, hparams):
    return state._replace(
        client_work=hparams['client_work'],
        finalizer=server_optimizer.set_hparams(
            state.finalizer, hparams['finalizer']
        ),
    )

  return tff.learning.templates.LearningProcess(
      initialize,
      next_fn,
      get_model_weights,
      set_model_weights,
      get_hparams_fn=get_hparams,
      set_hparams_fn=set_hparams,
  )


