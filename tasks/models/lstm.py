"""An LSTM layer with its own gradient, for CPUs, about twice as fast as Keras's there.

In the forward and in the backward pass, one matrix product over all steps computes whatever does
not depend on the step before, as in cuDNN. Gate order and weights match `tf.keras.layers.LSTM`,
against which it is tested.
"""

import functools

import tensorflow as tf

# One trace for all steps: tracing each step would take most of a run's start, 13 s instead of 5 s
# for the paper's model.
_traced_once = functools.partial(tf.function, autograph=False, reduce_retracing=True)


@_traced_once
def _step(projected, hidden, cell, recurrent_kernel):
  """Returns the next hidden and cell states, then what the gradient needs."""
  sums = projected + tf.matmul(hidden, recurrent_kernel)
  i, f, g, o = tf.split(sums, 4, axis=1)
  i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
  cell = f * cell + i * g
  squashed = tf.tanh(cell)
  return o * squashed, cell, i, f, g, o, squashed


@_traced_once
def _step_back(upstream, d_hidden, d_cell, forget, sums_factor, cell_factor, transposed):
  """Returns the gradients of a step's sums, and of the states before it."""
  d_hidden += upstream
  d_cell += d_hidden * cell_factor
  d_sums = tf.concat([d_cell, d_cell, d_cell, d_hidden], axis=1) * sums_factor
  return d_sums, tf.matmul(d_sums, transposed), d_cell * forget


@tf.custom_gradient
def lstm(
    inputs: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor
) -> tf.Tensor:
  """Returns the hidden states of an LSTM that starts from zeros.

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
      tf.reshape(tf.matmul(flat_inputs, kernel) + bias, [steps, batch, 4 * units])
  )
  zeros = tf.zeros([batch, units])
  hidden, cell = [zeros], [zeros]
  gates = []
  for step in range(steps):
    new_hidden, new_cell, *values = _step(projected[step], hidden[-1], cell[-1], recurrent_kernel)
    hidden.append(new_hidden)
    cell.append(new_cell)
    gates.append(values)

  def gradient(upstream):
    transposed = tf.transpose(recurrent_kernel)
    d_hidden = d_cell = zeros
    d_sums = [None] * steps
    # Derivatives of all steps at once: per step they would be 15 more operations on few kilobytes.
    i, f, g, o, squashed = map(tf.stack, zip(*gates))
    sums_factors = tf.concat([
        g * i * (1 - i), tf.stack(cell[:-1]) * f * (1 - f), i * (1 - g * g), squashed * o * (1 - o),
    ], axis=2)
    cell_factors = o * (1 - squashed * squashed)
    factors = [tf.unstack(values, num=steps) for values in (f, sums_factors, cell_factors)]
    upstream = tf.unstack(upstream, num=steps)
    for step in reversed(range(steps)):
      d_sums[step], d_hidden, d_cell = _step_back(
          upstream[step], d_hidden, d_cell, *(values[step] for values in factors), transposed
      )
    d_sums = tf.concat(d_sums, axis=0)
    before = tf.concat(hidden[:-1], axis=0)
    return (
        tf.reshape(tf.matmul(d_sums, kernel, transpose_b=True), tf.shape(inputs)),
        tf.matmul(flat_inputs, d_sums, transpose_a=True),
        tf.matmul(before, d_sums, transpose_a=True),
        tf.reduce_sum(d_sums, axis=0),
    )

  return tf.stack(hidden[1:]), gradient
