"""An LSTM layer with its own gradient, for CPUs, about twice as fast as Keras's there.

What does not depend on the step before is one matrix product over all steps, in
the forward and in the backward pass (the arrangement of cuDNN). Gate order and
weights are those of `tf.keras.layers.LSTM`, against which it is tested.
"""

import tensorflow as tf


@tf.custom_gradient
def lstm(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    bias: tf.Tensor,
) -> tf.Tensor:
  """The hidden states of an LSTM that starts from zeros.

  Args:
    inputs: float32[T, B, I], time first; T is static.
    kernel: float32[I, 4H], gates in the order input, forget, candidate, output.
    recurrent_kernel: float32[H, 4H].
    bias: float32[4H].

  Returns:
    float32[T, B, H].
  """
  steps = inputs.shape[0]
  units = recurrent_kernel.shape[0]
  batch = tf.shape(inputs)[1]
  flat_inputs = tf.reshape(inputs, [-1, inputs.shape[2]])
  projected = tf.unstack(
      tf.reshape(
          tf.matmul(flat_inputs, kernel) + bias, [steps, batch, 4 * units]
      )
  )
  zeros = tf.zeros([batch, units])
  hidden, cell = [zeros], [zeros]
  gates = []
  for step in range(steps):
    sums = projected[step] + tf.matmul(hidden[-1], recurrent_kernel)
    i, f, g, o = tf.split(sums, 4, axis=1)
    i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
    cell.append(f * cell[-1] + i * g)
    squashed = tf.tanh(cell[-1])
    hidden.append(o * squashed)
    gates.append((i, f, g, o, squashed))

  def gradient(upstream):
    transposed = tf.transpose(recurrent_kernel)
    d_hidden = d_cell = zeros
    d_sums = [None] * steps
    upstream = tf.unstack(upstream, num=steps)
    for step in reversed(range(steps)):
      i, f, g, o, squashed = gates[step]
      d_hidden += upstream[step]
      d_cell += d_hidden * o * (1 - squashed * squashed)
      d_sums[step] = tf.concat(
          [
              d_cell * g * i * (1 - i),
              d_cell * cell[step] * f * (1 - f),
              d_cell * i * (1 - g * g),
              d_hidden * squashed * o * (1 - o),
          ],
          axis=1,
      )
      d_cell *= f
      d_hidden = tf.matmul(d_sums[step], transposed)
    d_sums = tf.concat(d_sums, axis=0)
    before = tf.concat(hidden[:-1], axis=0)
    return (
        tf.reshape(
            tf.matmul(d_sums, kernel, transpose_b=True), tf.shape(inputs)
        ),
        tf.matmul(flat_inputs, d_sums, transpose_a=True),
        tf.matmul(before, d_sums, transpose_a=True),
        tf.reduce_sum(d_sums, axis=0),
    )

  return tf.stack(hidden[1:]), gradient
