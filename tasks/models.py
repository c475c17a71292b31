"""The paper's models as `FunctionalModel`s: two image CNNs and the character RNN."""

from collections.abc import Sequence

from absl import flags
import tensorflow as tf
import tensorflow_federated as tff

from tasks import errors
from tasks import initializers
from tasks import lstm
from tasks import pooling

_KERNEL = 5
_WHITE = 255.0


def sizes(flag: flags.FlagHolder) -> tuple[int, ...]:
  """A list flag as positive integers.

  Raises:
    InputError: If it is something else.
  """
  try:
    values = tuple(map(int, flag.value))
  except ValueError:
    values = ()
  if not values or min(values) < 1:
    raise errors.InputError(
        f'--{flag.name}={",".join(flag.value)} is not a list of positive integers'
        ' with commas between.'
    )
  return values


def _cross_entropy(logits, labels, sample_weight=None):
  """Mean over everything that `labels` labels, as Keras's loss."""
  del sample_weight
  return tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  )


def cnn(
    image_shape: Sequence[int],
    filters: Sequence[int],
    dense_units: Sequence[int],
    num_classes: int,
    initializer: initializers.Initializer,
) -> tff.learning.models.FunctionalModel:
  """5x5 convolutions with 2x2 max-pooling and ReLU, then dense layers, ReLU between.

  Section 5 of the paper: Fashion-MNIST takes filters 32, 64 and one dense layer
  of 512 (1,663,370 parameters); SVHN filters 64, 128 and dense 384, 192
  (3,431,754).

  Args:
    image_shape: Height, width and channels of an image.
    filters: Output channels of each convolution.
    dense_units: Units of each hidden dense layer.
    num_classes: Number of logits.
    initializer: Draws the initial weights.

  Returns:
    A model of images uint8[B, H, W, C] with labels int32[B].
  """
  height, width, channels = image_shape
  weights = []
  for outputs in filters:
    weights += initializer.dense((_KERNEL, _KERNEL, channels, outputs))
    channels = outputs
    height, width = -(-height // 2), -(-width // 2)
  units = height * width * channels
  for outputs in (*dense_units, num_classes):
    weights += initializer.dense((units, outputs))
    units = outputs

  @tf.function
  def predict_on_batch(model_weights, images, training):
    del training  # Nothing here behaves differently in training.
    layers = iter(model_weights[0])
    out = tf.cast(images, tf.float32) / _WHITE
    for _ in filters:
      kernel, bias = next(layers), next(layers)
      out = tf.nn.bias_add(tf.nn.conv2d(out, kernel, 1, 'SAME'), bias)
      out = tf.nn.relu(pooling.max_pool_2x2(out))
    out = tf.reshape(out, [-1, height * width * channels])
    for _ in dense_units:
      out = tf.nn.relu(tf.matmul(out, next(layers)) + next(layers))
    return tf.matmul(out, next(layers)) + next(layers)

  return tff.learning.models.FunctionalModel(
      initial_weights=(tuple(weights), ()),
      predict_on_batch_fn=predict_on_batch,
      loss_fn=_cross_entropy,
      input_spec=(
          tf.TensorSpec([None, *image_shape], tf.uint8),
          tf.TensorSpec([None], tf.int32),
      ),
  )


def character_rnn(
    vocabulary_size: int,
    embedding_size: int,
    lstm_units: Sequence[int],
    sequence_length: int,
    padding: int,
    initializer: initializers.Initializer,
    use_keras: bool = False,
) -> tff.learning.models.FunctionalModel:
  """Embedding, LSTM layers, and a dense layer of logits for the next character.

  Section 5 of the paper (after Reddi et al., arXiv 2003.00295): 90 characters,
  embedding 8, two LSTM layers of 256: 820,522 parameters.

  Args:
    vocabulary_size: Number of characters, special ones included.
    embedding_size: Size of a character's embedding.
    lstm_units: Units of each LSTM layer.
    sequence_length: Characters in an example.
    padding: The label that fills up an example. The loss is a mean over the other
      labels, as with TFF's Keras model, which masks padding: short roles would
      teach to predict it otherwise.
    initializer: Draws the initial weights.
    use_keras: Whether the LSTM layers are Keras's, which on a GPU run as one kernel
      of cuDNN; if not, they are `lstm.lstm`, faster on processors. The weights are
      the same.

  Returns:
    A model of characters int32[B, T] with the next ones as labels int32[B, T].
  """
  weights = [initializer.embedding((vocabulary_size, embedding_size))]
  inputs = embedding_size
  for units in lstm_units:
    weights += initializer.lstm(inputs, units)
    inputs = units
  weights += initializer.dense((inputs, vocabulary_size))

  input_spec = (tf.TensorSpec([None, sequence_length], tf.int32),) * 2

  @tf.function
  def predict_on_batch(model_weights, characters, training):
    del training  # Nothing here behaves differently in training.
    embedding, *layers, kernel, bias = model_weights[0]
    out = tf.gather(embedding, tf.transpose(characters))
    for first in range(0, len(layers), 3):
      out = lstm.lstm(out, *layers[first : first + 3])
    logits = tf.matmul(tf.reshape(out, [-1, inputs]), kernel) + bias
    return tf.transpose(
        tf.reshape(logits, [sequence_length, -1, vocabulary_size]), [1, 0, 2]
    )

  def loss(logits, labels, sample_weight=None):
    del sample_weight
    real = tf.cast(tf.not_equal(labels, padding), tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.math.divide_no_nan(
        tf.reduce_sum(losses * real), tf.reduce_sum(real)
    )

  if use_keras:
    layers = tf.keras.layers
    keras_model = tf.keras.Sequential([
        layers.Embedding(
            vocabulary_size, embedding_size, input_length=sequence_length
        ),
        *[layers.LSTM(units, return_sequences=True) for units in lstm_units],
        layers.Dense(vocabulary_size),
    ])
    converted = tff.learning.models.functional_model_from_keras(
        keras_model, tf.keras.losses.MeanSquaredError(), input_spec
    )

    @tf.function
    def predict_on_batch(model_weights, characters, training):
      return converted.predict_on_batch(model_weights, characters, training=training)

  return tff.learning.models.FunctionalModel(
      initial_weights=(tuple(weights), ()),
      predict_on_batch_fn=predict_on_batch,
      loss_fn=loss,
      input_spec=input_spec,
  )


def from_keras_images(
    keras_model: tf.keras.Model, image_shape: Sequence[int]
) -> tff.learning.models.FunctionalModel:
  """A Keras classifier of float images, that ends in a softmax, as a `FunctionalModel`.

  Args:
    keras_model: The Keras model, with its initial weights.
    image_shape: Height, width and channels of an image.

  Returns:
    A model of images uint8[B, H, W, C] with labels int32[B], for use in
    `tff.tensorflow.computation`s (TFF's converter sets that limit).
  """
  labels_spec = tf.TensorSpec([None], tf.int32)
  converted = tff.learning.models.functional_model_from_keras(
      keras_model,
      tf.keras.losses.SparseCategoricalCrossentropy(),
      (tf.TensorSpec([None, *image_shape], tf.float32), labels_spec),
  )

  @tf.function
  def predict_on_batch(model_weights, images, training):
    return converted.predict_on_batch(
        model_weights, tf.cast(images, tf.float32) / _WHITE, training=training
    )

  return tff.learning.models.FunctionalModel(
      initial_weights=converted.initial_weights,
      predict_on_batch_fn=predict_on_batch,
      loss_fn=converted.loss,
      input_spec=(tf.TensorSpec([None, *image_shape], tf.uint8), labels_spec),
  )
