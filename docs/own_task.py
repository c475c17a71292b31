"""A template for a task of your own: data, model and settings in one file.

  python -m tasks.run --task=docs.own_task --rounds=20

Copy it to the Python path, and name its module with `--task=`. All flags, sweeps, reports and
accounting then work for your task.
"""

from absl import flags
import numpy as np

from tasks import errors
from tasks.datasets import showing
from tasks.datasets import task as task_lib
from tasks.models import initializers

# A task's own flags begin with its name. Reports list them, and a run that resumes checks them.
_CLIENTS = flags.DEFINE_integer('two_moons_clients', 300, 'Number of clients.')


def _points(rng: np.random.Generator, num: int) -> task_lib.Examples:
  """Points x float32[num, 2] on two half circles, and which of the two, y int32[num]."""
  y = rng.integers(0, 2, num, np.int32)
  angle = rng.uniform(0, np.pi, num)
  x = np.stack([np.cos(angle) - y, np.sin(angle) * (1 - 2 * y) + 0.5 * y], axis=1)
  return (x + rng.normal(0, 0.1, x.shape)).astype(np.float32), y


def _load(seed: int, num_public: int, num_held_out: int = 0) -> task_lib.TaskData:
  """Loads the data. Read files here; each client's examples are a pair of arrays x and y."""
  if _CLIENTS.value < 1:
    raise errors.InputError(f'--two_moons_clients must be >= 1; got {_CLIENTS.value}.')
  rng = np.random.default_rng(seed)
  # For people's own data, build `TaskData` with `clients`, `client_ids` and `test_owners`: then
  # the plan states whose examples the accuracies are of.
  return task_lib.cut_pool(
      _points(rng, 20 * _CLIENTS.value), _points(rng, 2000), _CLIENTS.value,
      'synthetic: points on two half circles', rng, num_public, num_held_out,
  )


def _build_model(initializer: initializers.Initializer):
  """Returns a `tff.learning.models.FunctionalModel` with its initial weights."""
  import tensorflow as tf  # Here, so that --help need not wait for it.
  import tensorflow_federated as tff

  weights = [*initializer.dense((2, 16)), *initializer.dense((16, 2))]

  @tf.function
  def predict_on_batch(model_weights, x, training):
    del training
    kernel_1, bias_1, kernel_2, bias_2 = model_weights[0]
    return tf.matmul(tf.nn.relu(tf.matmul(x, kernel_1) + bias_1), kernel_2) + bias_2

  def loss(logits, labels, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

  return tff.learning.models.FunctionalModel(
      initial_weights=(tuple(weights), ()),
      predict_on_batch_fn=predict_on_batch,
      loss_fn=loss,
      input_spec=(tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.int32)),
  )


TASK = task_lib.Task(
    name='two_moons',
    title='Two half circles, a small network',
    # What runs have where a flag is not given.
    settings=task_lib.PaperSettings(
        rounds=50,
        clients_per_round=30,
        noise_multiplier=1.0,
        clipping_norm=0.5,
        population=None,
        learning_rate=0.3,
        learning_rate_decay=0.99,
        learning_rate_decay_rounds=1,
        momentum=0.5,
        batch_size=10,
        local_epochs=2,
        public_examples=100,
        topk_ratio=0.5,
        randk_ratio=0.5,
    ),
    build_model=_build_model,
    load=_load,
    num_clients=lambda: _CLIENTS.value,
    show=showing.confusion_table(('upper', 'lower')),
)
