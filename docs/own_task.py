"""A template for a task of your own: data, model and defaults in one file.

  python -m tasks.run --task=docs.own_task --rounds=20

Copy it to the Python path, and name its module with `--task=`. All flags, sweeps, reports and
accounting then work for your task.
"""

import dataclasses

import numpy as np

from tasks.cli import options
from tasks.datasets import showing
from tasks.datasets import task as task_lib
from tasks.models import initializers


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this task."""

  clients: int = options.option(300, 'Number of clients.', at_least=1)  # --two_moons_clients


def _points(rng: np.random.Generator, num: int) -> task_lib.Examples:
  """Points x float32[num, 2] on two half circles, and which of the two, y int32[num]."""
  y = rng.integers(0, 2, num, np.int32)
  angle = rng.uniform(0, np.pi, num)
  x = np.stack([np.cos(angle) - y, np.sin(angle) * (1 - 2 * y) + 0.5 * y], axis=1)
  return (x + rng.normal(0, 0.1, x.shape)).astype(np.float32), y


def _load(own: Options, split: task_lib.Split) -> task_lib.TaskData:
  """Loads the data. Read files of `split.directory` here, the value of --data_dir."""
  rng = np.random.default_rng(split.seed)
  # For people's own data use `tasks.datasets.people.divide`, as tasks/datasets/emnist.py does:
  # `cut_pool` cuts one person into many clients, and epsilon covers one.
  return task_lib.cut_pool(
      _points(rng, 20 * own.clients), _points(rng, 2000), own.clients,
      'synthetic: points on two half circles', split,
  )


def _build_model(own: Options, initializer: initializers.Initializer):
  """Returns the model with its initial weights: a body and, for --trainable=head, a last layer.

  With --trainable=all any `tff.learning.models.FunctionalModel` does.
  """
  del own
  import tensorflow as tf  # Here, so that --help need not wait for it.

  from tasks.models import split

  def body(weights, x):
    kernel, bias = weights
    return tf.nn.relu(tf.matmul(x, kernel) + bias)

  def loss(logits, labels, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

  return split.SplitModel(
      body,
      weights=[*initializer.dense((2, 16)), *initializer.dense((16, 2))],
      loss_fn=loss,
      input_spec=(tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.int32)),
  )


TASK = task_lib.Task(
    name='two_moons',
    title='Two half circles, a small network',
    # The values of flags that are not given.
    defaults=task_lib.Defaults(
        rounds=50,
        clients_per_round=30,
        noise_multiplier=1.0,
        clip=0.5,
        learning_rate=0.3,
        learning_rate_decay=0.99,
        momentum=0.5,
        p=0.5,
        local_epochs=2,
        public_examples=100,
    ),
    load=_load,
    build_model=_build_model,
    options=Options,
    show=showing.confusion_table(('upper', 'lower')),
)
