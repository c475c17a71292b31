"""All layers of Shakespeare's LSTM in whitened coordinates.

  python -m tasks.run --task=docs.examples.whitened

A step on a kernel is slow in directions in which the inputs vary little, and a client's clip and
noise weigh all directions alike. So clients train V of each kernel K = A V, where A is the inverse
square root of the second moment of the kernel's inputs. A and the initial weights follow from public
sequences, before round 0: they cost no epsilon.
"""

import dataclasses
import sys
import zlib

import numpy as np

from tasks.datasets import shakespeare
from tasks.datasets import task as task_lib
from tasks.models import initializers

# lambda / mean second moment of an input.
_RIDGE = 0.1
_NUM_PUBLIC = 1000
# Largest number of a client's sequences, evenly spaced: rounds take half as long, and the clipped
# update of a long role gains little from the others.
_MAX_SEQUENCES = 48
_BATCH = 100


def second_moments(weights, characters: np.ndarray) -> dict[int, np.ndarray]:
  """Returns the mean of h h^T over the inputs h of each kernel, by the kernel's place in `weights`.

  Args:
    weights: The LSTM's trainable weights: embedding, then kernel, recurrent kernel and bias of two
      layers, then the last layer's kernel and bias.
    characters: int32[N, T].
  """
  import tensorflow as tf  # Here, so that --help need not wait for it.

  from tasks.models import lstm

  sums, num = {}, 0
  embedding, *layers = weights[:-2]
  for start in range(0, len(characters), _BATCH):
    x = characters[start : start + _BATCH]
    out = tf.transpose(tf.gather(embedding, x), [1, 0, 2])
    inputs = {}
    for i in range(0, len(layers), 3):
      hidden = lstm.lstm(out, *layers[i : i + 3])
      before = tf.concat([tf.zeros_like(hidden[:1]), hidden[:-1]], axis=0)
      inputs[1 + i], inputs[2 + i] = out, before
      out = hidden
    inputs[1 + len(layers)] = out
    for place, h in inputs.items():
      h = h.numpy().reshape(-1, h.shape[-1]).astype(np.float64)
      sums[place] = sums.get(place, 0) + h.T @ h
    num += x.size
  return {place: total / num for place, total in sums.items()}


def whitened(model, weights, moments: dict[int, np.ndarray]):
  """Returns the model with weights V in place of K = A V; its initial weights are `weights`."""
  import tensorflow as tf
  import tensorflow_federated as tff

  matrices, initial = {}, list(weights)
  for place, moment in moments.items():
    values, vectors = np.linalg.eigh(moment)
    values += _RIDGE * values.mean()
    matrices[place] = ((vectors * values**-0.5) @ vectors.T).astype(np.float32)
    initial[place] = ((vectors * values**0.5) @ vectors.T @ weights[place]).astype(np.float32)

  def kernels(trainable):
    return tuple(
        tf.matmul(matrices[place], weight) if place in matrices else weight
        for place, weight in enumerate(trainable)
    )

  @tf.function
  def predict_on_batch(model_weights, x, training):
    return model.predict_on_batch((kernels(model_weights[0]), ()), x, training)

  return tff.learning.models.FunctionalModel(
      initial_weights=(tuple(initial), ()), predict_on_batch_fn=predict_on_batch,
      loss_fn=model.loss, input_spec=model.input_spec,
  )


def _build_model(own: shakespeare.Options, initializer: initializers.Initializer):
  """Returns the pre-trained model: it has its own public sequences, so that A can follow from them."""
  from tasks.training import public_model

  task = shakespeare.TASK
  model = task.build_model(own, initializer)
  # A sample of the public play per initialization.
  seed = zlib.crc32(model.initial_weights[0][0].tobytes())
  public = task.load(own, task_lib.Split(seed, _NUM_PUBLIC)).public
  schedule = task.pretraining

  def report(epoch, loss):
    line = f'pre-training: epoch {epoch}/{schedule.epochs}, loss {loss:.4f}'
    print(line, file=sys.stderr, flush=True)

  weights = public_model.train(model, schedule, public, seed, report).trainable
  return whitened(model, weights, second_moments(weights, public[0]))


def _load(own: shakespeare.Options, split: task_lib.Split) -> task_lib.TaskData:
  """Returns Shakespeare's data; the public play's roles are clients in no run."""
  num_public = max(split.num_public, _NUM_PUBLIC)
  data = shakespeare.TASK.load(own, split._replace(num_public=num_public))
  clients = [
      tuple(array[:: max(1, -(-len(array) // _MAX_SEQUENCES))] for array in client)
      for client in data.clients
  ]
  return dataclasses.replace(data, clients=clients)


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
    # The initial weights are pre-trained already.
    pretraining=task_lib.Pretraining(epochs=0, learning_rate=0.0, temperature=1.0),
)
