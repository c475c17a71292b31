"""Local training: ClientUpdate of Algorithm 1, and SelectTopk's update on public data."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import Any, Optional
import warnings

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import errors
from fedsmp_tff import flattening
from fedsmp_tff import memory_file
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers

_ALL_EXAMPLES = 2**31 - 1  # `Dataset.batch` reserves at most 2^16 elements at once.


@dataclasses.dataclass(frozen=True)
class LocalTraining:
  """Describes training from given weights, on a client's data or on public data.

  Each epoch visits the examples in a new random order, in minibatches. The optimizer's state,
  momentum included, is zero at the start of every call: section 5 of the paper.

  Attributes:
    optimizer: Optimizer of the steps.
    batch_size: Number of examples per step; the last minibatch of an epoch may be smaller.
    epochs: Number of epochs. Exactly one of `epochs` and `steps` is set.
    steps: Number of steps, the paper's tau, over as many epochs as they need.
    max_examples: Maximum number of examples on which a client trains in a round, drawn by `draw`.
      None: all its examples. Training on public data always uses all.
    learning_rate_fn: Function from a round's number (int32 scalar tensor, from 0) to its learning
      rate; None: the optimizer's own.

  Raises:
    TypeError: If `optimizer` is not a TFF optimizer.
    ValueError: If a number is out of range, or not exactly one of `epochs` and `steps` is set.
  """

  optimizer: tff.learning.optimizers.Optimizer
  batch_size: int
  epochs: Optional[int] = None
  steps: Optional[int] = None
  max_examples: Optional[int] = None
  learning_rate_fn: Optional[Callable[[tf.Tensor], tf.Tensor]] = None

  def __post_init__(self):
    if not isinstance(self.optimizer, tff.learning.optimizers.Optimizer):
      raise TypeError(
          '`optimizer` must be a `tff.learning.optimizers.Optimizer`. Found'
          f' {type(self.optimizer)}.'
      )
    if (self.epochs is None) == (self.steps is None):
      raise ValueError(
          f'Exactly one of `epochs` and `steps` must be set. Found epochs={self.epochs},'
          f' steps={self.steps}.'
      )
    for name in ('batch_size', 'epochs', 'steps', 'max_examples'):
      value = getattr(self, name)
      if value is not None:
        errors.check_positive(name, value)

  def initial_hparams(self, weights: Any) -> Any:
    """Returns the optimizer's hyperparameters in round 0, an ordered dictionary of scalars.

    Args:
      weights: The trainable weights, or their `tf.TensorSpec`s.

    Raises:
      ValueError: If a schedule is set and the optimizer has no learning rate.
    """
    hparams = self.optimizer.get_hparams(self.optimizer.initialize(weights))
    key = tff.learning.optimizers.LEARNING_RATE_KEY
    if self.learning_rate_fn is not None and key not in hparams:
      raise ValueError(
          f'`learning_rate_fn` needs an optimizer with a {key!r} hyperparameter. Found'
          f' {list(hparams)}.'
      )
    hparams = type(hparams)(
        (name, tf.convert_to_tensor(value, tf.float32)) for name, value in hparams.items()
    )
    return self.hparams_of_round(hparams, tf.constant(0))

  def hparams_of_round(self, hparams: Any, round_num: tf.Tensor) -> Any:
    """Returns `hparams` with the round's scheduled learning rate."""
    if self.learning_rate_fn is None:
      return hparams
    rate = tf.cast(self.learning_rate_fn(round_num), tf.float32)
    return type(hparams)(hparams, **{tff.learning.optimizers.LEARNING_RATE_KEY: rate})

  def draw(self, examples: Any, seed: tf.Tensor) -> Any:
    """Returns the examples that a client trains on in a round: at most `max_examples` of them.

    They are drawn uniformly without replacement and keep their order, so that a client without more
    than `max_examples` trains as if there were no limit. (TFF's baselines limit a client to
    `max_elements_per_client`, in every round the same.)

    Epsilon is unchanged. The draw depends on the client's own data and on a seed of its own, so that
    it is a part of this client's local training, and whatever update comes of that is clipped.

    Args:
      examples: Tensors whose first dimension counts the examples, in any structure.
      seed: int64[2], a seed of the client and the round.
    """
    if self.max_examples is None:
      return examples
    order = tf.random.experimental.stateless_shuffle(tf.range(_num_examples(examples)), seed)
    rows = tf.sort(order[: self.max_examples])
    return tf.nest.map_structure(lambda t: tf.gather(t, rows), examples)

  def train(
      self,
      model: tff.learning.models.FunctionalModel,
      weights: tff.learning.models.ModelWeights,
      examples: Any,
      hparams: Any,
      seed: tf.Tensor,
  ) -> Any:
    """Trains from `weights` and returns old minus new trainable weights.

    The steps are one `tf.while_loop` on tensors, without dataset iterator or Keras.

    Args:
      model: The model.
      weights: Initial weights.
      examples: Tensors whose first dimension counts the examples, in a structure that `x_and_y`
        takes; without examples the update is zero.
      hparams: Hyperparameters of the optimizer in the round.
      seed: int64[2], seed of the order of the examples.

    Returns:
      The update, in the structure of `weights.trainable`.
    """
    examples = x_and_y(examples)
    num_examples = _num_examples(examples)
    per_epoch = -(-num_examples // self.batch_size)
    if self.steps is None:
      num_steps = self.epochs * per_epoch
    else:
      num_steps = tf.where(tf.greater(num_examples, 0), self.steps, 0)
    specs = tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights.trainable)
    state = self.optimizer.set_hparams(self.optimizer.initialize(specs), hparams)
    state = tf.nest.map_structure(tf.convert_to_tensor, state)
    unshuffled = tf.range(num_examples)

    def body(step, order, trainable, state):
      position = step % per_epoch
      order = tf.cond(
          tf.equal(position, 0),
          lambda: tf.random.experimental.stateless_shuffle(
              unshuffled, randomness.fold_in(seed, step // per_epoch)
          ),
          lambda: order,
      )
      start = position * self.batch_size
      rows = order[start : start + self.batch_size]
      x, y = tf.nest.map_structure(lambda t: tf.gather(t, rows), examples)
      with tf.GradientTape() as tape:
        tape.watch(trainable)
        output = model.predict_on_batch((trainable, weights.non_trainable), x, training=True)
        loss = model.loss(output, y)
      gradient = tape.gradient(loss, trainable)
      state, trainable = self.optimizer.next(state, trainable, gradient)
      return step + 1, order, trainable, state

    _, _, trained, _ = tf.while_loop(
        lambda step, *_: step < num_steps,
        body,
        (tf.constant(0), unshuffled, weights.trainable, state),
        parallel_iterations=1,
    )
    return tf.nest.map_structure(tf.subtract, weights.trainable, trained)


class TracedTraining:
  """`LocalTraining.train`, traced once for all graphs: tracing the paper's RNN takes 1.5 s."""

  def __init__(self, training: LocalTraining, model: tff.learning.models.FunctionalModel):
    self._training = training
    self._model = model
    self._traces = {}

  def __call__(self, weights: Any, examples: Any, hparams: Any, seed: tf.Tensor) -> Any:
    """See `LocalTraining.train`; one trace is for any number of examples."""
    arguments = weights, examples, hparams, seed
    specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), arguments)
    rows = tf.nest.map_structure(
        lambda s: tf.TensorSpec([None, *s.shape[1:]], s.dtype), specs[1]
    )
    specs = specs[0], rows, *specs[2:]
    # Public examples may have other dtypes than clients' examples, such as int64 labels.
    kind = tuple(tf.nest.flatten(rows))
    # TFF can trace Keras models only in a `tff.tensorflow.computation`, so not before a call.
    if kind not in self._traces:
      self._traces[kind] = tf.function(
          lambda *tensors: self._training.train(
              self._model, *tf.nest.pack_sequence_as(specs, tensors)
          ),
          autograph=False,
      ).get_concrete_function(*tf.nest.flatten(specs))
    return self._traces[kind](*tf.nest.flatten(arguments))


@dataclasses.dataclass(frozen=True, eq=False)
class PublicUpdate:
  """The update on public data by which a sparsifier ranks coordinates (SelectTopk).

  It is the update of one training, or the mean over pseudo-clients, which run in parallel on the
  server: TensorFlow runs independent operations at the same time. Its graphs read the examples from
  memory of this process, and run on this machine alone.
  """

  train: TracedTraining
  public: sparsifiers.PublicTraining
  flattener: flattening.Flattener  # For the trainable weights' type.

  def __call__(
      self, weights: Any, hparams: Any, clipping_norm: tf.Tensor, seed: tf.Tensor
  ) -> tf.Tensor:
    """Returns the mean of the trainings' clipped updates (old minus new weights), [d].

    Args:
      weights: The `ModelWeights` to start from.
      hparams: Hyperparameters of the trainings.
      clipping_norm: float64, C of the round; infinite without clipping.
      seed: int64[2], public seed of the round.

    A training's update that is not finite fails a check.
    """
    examples = tf.nest.map_structure(memory_file.MemoryFile.read, self._files)
    updates = []
    for rows, own_seed in self._parts(seed):
      own = tf.nest.map_structure(lambda array, rows=rows: tf.gather(array, rows), examples)
      update = self.flattener.flatten(self.train(weights, own, hparams, own_seed))
      update = errors.after_check(
          tf.reduce_all(tf.math.is_finite(update)),
          'The update on public data is not finite, and would rank coordinates by chance. Remove'
          ' NaN and infinity from the public examples and the weights, or lower the learning rate.',
          update,
      )
      # The largest update dominates an unclipped mean: with ten pseudo-clients, in Shakespeare's
      # first round, it has 6 % of the energy of the clients' mean, the clipped mean 83 %.
      norm = tf.norm(tf.cast(update, tf.float64))
      factor = tf.where(norm > clipping_norm, clipping_norm / norm, 1.0)
      updates.append(update * tf.cast(factor, update.dtype))
    return tf.add_n(updates) / len(updates) if len(updates) > 1 else updates[0]

  @functools.cached_property
  def _files(self) -> Any:
    return tf.nest.map_structure(memory_file.MemoryFile, self.public.examples)

  def _parts(self, seed: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns the rows of the examples and the seed of each training."""
    num_examples = len(tf.nest.flatten(self.public.examples)[0])
    if self.public.clients is None:
      return [(tf.range(num_examples), seed)]
    seed = randomness.derive(seed, randomness.Stream.PUBLIC)
    order = tf.random.experimental.stateless_shuffle(tf.range(num_examples), seed)
    size = num_examples // self.public.clients
    return [
        (order[i * size : (i + 1) * size], randomness.fold_in(seed, i))
        for i in range(self.public.clients)
    ]


def _num_examples(examples: Any) -> tf.Tensor:
  return tf.shape(tf.nest.flatten(examples)[0])[0]


def examples_of(dataset: tf.data.Dataset) -> Any:
  """Returns all elements of a dataset, possibly none, stacked along a new first axis."""
  nothing = tf.nest.map_structure(
      lambda s: tf.zeros([0] + s.shape.as_list(), s.dtype), dataset.element_spec
  )
  # The first batch has all elements, or is the empty one. `get_single_element` takes 0.3 ms;
  # `reduce`, which also works on an empty dataset, takes 15 ms.
  batches = dataset.batch(_ALL_EXAMPLES).concatenate(tf.data.Dataset.from_tensors(nothing))
  return batches.take(1).get_single_element()


def x_and_y(examples: Any) -> tuple[Any, Any]:
  """Returns x and y of examples, or of their specs: of a pair, or of a mapping with these keys.

  A mapping that is unpacked as a pair gives its keys, without an error.

  Raises:
    ValueError: If the examples have another form.
  """
  if isinstance(examples, Mapping) and set(examples) == {'x', 'y'}:
    return examples['x'], examples['y']
  if isinstance(examples, Sequence) and len(examples) == 2:
    return tuple(examples)
  found = f'keys {list(examples)}' if isinstance(examples, Mapping) else type(examples).__name__
  raise ValueError(
      "Examples must be pairs (x, y) or mappings with the keys 'x' and 'y', as in TFF. Found"
      f' {found}. Convert them with `Dataset.map`, and change the `input_spec` of the model.'
  )


def warn_about_batch_norm(non_trainable: Sequence[Any]) -> None:
  """Warns of batch normalization, by initial values of its moving averages: zeros, then ones.

  TFF itself warns of Keras models if the layer is not inside another. Averages of a model that was
  trained before are no fault: they stay, as in inference mode.
  """
  arrays = [np.asarray(weight) for weight in tf.nest.flatten(non_trainable)]
  for mean, variance in itertools.pairwise(arrays):
    if mean.ndim == 1 and mean.shape == variance.shape and not mean.any() and (variance == 1).all():
      warnings.warn(
          'The model seems to have batch normalization: two non-trainable weights are zeros and'
          ' ones, as moving averages before training. No aggregator moves them, so that evaluation'
          ' would normalize by wrong numbers. Use `tf.keras.layers.GroupNormalization`.',
          stacklevel=3,
      )
      return


def examples_type(model: tff.learning.models.FunctionalModel) -> tff.SequenceType:
  """Returns the type of a dataset of single examples, from the model's batched input.

  Raises:
    ValueError: If the input is not of a form that `x_and_y` takes.
  """
  x_and_y(model.input_spec)
  specs = tf.nest.map_structure(lambda s: tf.TensorSpec(s.shape[1:], s.dtype), model.input_spec)
  return tff.SequenceType(tff.types.tensorflow_to_type(specs))
