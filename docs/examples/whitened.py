"""All layers of Shakespeare's LSTM in whitened coordinates.

  python -m tasks.run --task=docs.examples.whitened

Steps on a kernel K are slow in directions in which its inputs h are small, and clip and noise weigh
all directions alike. So rounds train V, where K = A V and A = (E[h h^T] + lambda I)^(-1/2). A
follows from the public examples alone, after pre-training, and costs no epsilon. The matrices A are
weights that no round trains; until the end of pre-training, and with --warm_start=none, A = I.
"""

import dataclasses

import numpy as np

from tasks.datasets import shakespeare
from tasks.datasets import task as task_lib
from tasks.models import initializers

# lambda / mean of an input's square.
_RIDGE = 0.1
# A role with more sequences trains on every second, third, ... of them, at most this many.
_MAX_SEQUENCES = 48
_BATCH = 100


def in_coordinates(model):
  """Returns an LSTM with weights V of its kernels, and matrices A as weights that are not trained.

  Args:
    model: A model by `tasks.models.rnn.character_rnn`. Its trainable weights are an embedding, then
      kernel, recurrent kernel and bias of each layer, then the last layer's kernel and bias.
  """
  import tensorflow as tf  # Here, so that --help need not wait for it.
  import tensorflow_federated as tff

  weights = model.initial_weights[0]
  places = _kernels(weights)

  @tf.function
  def predict_on_batch(model_weights, x, training):
    trainable, matrices = model_weights
    kernels = list(trainable)
    for place, matrix in zip(places, matrices):
      kernels[place] = tf.matmul(matrix, trainable[place])
    return model.predict_on_batch((tuple(kernels), ()), x, training)

  identities = tuple(np.eye(len(weights[place]), dtype=np.float32) for place in places)
  return tff.learning.models.FunctionalModel(
      initial_weights=(weights, identities), predict_on_batch_fn=predict_on_batch,
      loss_fn=model.loss, input_spec=model.input_spec,
  )


def whiten(pretrained, public: task_lib.Examples):
  """Returns the weights V and A of pre-trained kernels (V = K, A = I), by the public examples."""
  import tensorflow_federated as tff

  from tasks.models import split

  trainable, matrices = list(pretrained.trainable), []
  for place, moment in second_moments(trainable, public[0]).items():
    matrix = split.inverse_root(moment, _RIDGE)
    trainable[place] = np.linalg.solve(matrix, trainable[place]).astype(np.float32)
    matrices.append(matrix.astype(np.float32))
  return tff.learning.models.ModelWeights(tuple(trainable), tuple(matrices))


def second_moments(weights, characters: np.ndarray) -> dict[int, np.ndarray]:
  """Returns E[h h^T] of the inputs of each kernel, by the kernel's place in the weights.

  Args:
    weights: The trainable weights; see `in_coordinates`.
    characters: int32[N, T]. Padding counts as an input.
  """
  import tensorflow as tf

  from tasks.models import lstm

  sums = dict.fromkeys(_kernels(weights), 0)
  embedding, *layers = weights[:-2]
  for start in range(0, len(characters), _BATCH):
    out = tf.gather(embedding, characters[start : start + _BATCH].T)
    inputs = []
    for first in range(0, len(layers), 3):
      hidden = lstm.lstm(out, *layers[first : first + 3])
      inputs += [out, tf.concat([tf.zeros_like(hidden[:1]), hidden[:-1]], axis=0)]
      out = hidden
    for place, h in zip(sums, [*inputs, out]):
      h = h.numpy().reshape(-1, h.shape[-1]).astype(np.float64)
      sums[place] += h.T @ h
  return {place: total / characters.size for place, total in sums.items()}


def _kernels(weights) -> list[int]:
  """Returns the places of all matrices but the embedding."""
  return [place for place, weight in enumerate(weights) if place and weight.ndim == 2]


def _load(own: shakespeare.Options, split: task_lib.Split) -> task_lib.TaskData:
  """Returns Shakespeare's data with fewer sequences of the longest roles."""
  data = shakespeare.TASK.load(own, split)
  clients = [
      tuple(array[:: max(1, -(-len(array) // _MAX_SEQUENCES))] for array in client)
      for client in data.clients
  ]
  return dataclasses.replace(data, clients=clients)


def _build_model(own: shakespeare.Options, initializer: initializers.Initializer):
  return in_coordinates(shakespeare.TASK.build_model(own, initializer))


TASK = dataclasses.replace(
    shakespeare.TASK,
    name='whitened',
    title='Next character in Shakespeare\'s plays, LSTM in whitened coordinates',
    defaults=dataclasses.replace(
        shakespeare.TASK.defaults, trainable='all', rounds=20, clients_per_round=300,
        batch_size=4, learning_rate=0.03, clip=0.15, server_learning_rate=20.0,
    ),
    load=_load,
    build_model=_build_model,
    after_pretraining=whiten,
)
