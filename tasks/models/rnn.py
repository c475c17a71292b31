"""The paper's character model as a `FunctionalModel`."""

from collections.abc import Sequence
from typing import Optional

import tensorflow as tf

from tasks.models import initializers
from tasks.models import lstm
from tasks.models import split


def character_rnn(
    vocabulary_size: int, embedding_size: int, lstm_units: Sequence[int], sequence_length: int,
    padding: Optional[int], initializer: initializers.Initializer, use_keras: bool = False,
) -> split.SplitModel:
  """Returns a model of an embedding, LSTM layers, and logits for the next character.

  Section 5 of the paper (after Reddi et al., arXiv 2003.00295): 90 characters, embedding 8, two
  LSTM layers of 256: 820,522 parameters.

  Args:
    vocabulary_size: Number of characters, special ones included.
    embedding_size: Size of a character's embedding.
    lstm_units: Units of each LSTM layer.
    sequence_length: Characters in an example.
    padding: Label of padding. The loss is a mean over the other labels, as with TFF's Keras model:
      otherwise the model would learn from short roles to predict padding. None: the loss is a mean
      over all labels.
    initializer: Draws the initial weights.
    use_keras: Whether the LSTM layers are Keras's, which on a GPU run as one kernel of cuDNN; if
      not, they are `lstm.lstm`, faster on CPUs, with the same weights.

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

  def body(model_weights, characters):
    embedding, *layers = model_weights
    out = tf.gather(embedding, tf.transpose(characters))
    for first in range(0, len(layers), 3):
      out = (_keras_lstm if use_keras else lstm.lstm)(out, *layers[first : first + 3])
    return tf.transpose(out, [1, 0, 2])

  def loss(logits, labels, sample_weight=None):
    del sample_weight
    real = tf.ones_like(labels, tf.float32)
    if padding is not None:
      real = tf.cast(tf.not_equal(labels, padding), tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * real), tf.reduce_sum(real))

  return split.SplitModel(body, weights, loss, input_spec)


def _keras_lstm(
    inputs: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor
) -> tf.Tensor:
  """Computes `lstm.lstm` by Keras, with tensors in place of a layer's variables."""
  layer = tf.keras.layers.LSTM(recurrent_kernel.shape[0], return_sequences=True, time_major=True)
  layer.cell.kernel, layer.cell.recurrent_kernel, layer.cell.bias = kernel, recurrent_kernel, bias
  layer.built = layer.cell.built = True
  return layer(inputs)
