"""A template for a task of your own: data, model and defaults in one file.

  python -m tasks.run --task=docs.own_task --rounds=20

Copy it to the Python path, and name its module with `--task=`. All flags, sweeps, reports and
accounting then work for your task. It makes its data up, so that it runs as it is; for rows of a
file, start from own_rows_task.py.
"""

import dataclasses

import numpy as np

from tasks.cli import options
from tasks.datasets import confusion_matrix
from tasks.datasets import people
from tasks.datasets import task as task_lib
from tasks.models import initializers

_POINTS_PER_PERSON = 20


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this task."""

  people: int = options.option(  # --two_moons_people
      300, 'Number of people; clients are those who are not set aside.', at_least=1
  )


def _person(number: int) -> people.Person:
  """A person with points x float32[num, 2] near two half circles, y int32[num] says which."""
  rng, num = np.random.default_rng(number), _POINTS_PER_PERSON
  y = rng.integers(0, 2, num, np.int32)
  angle = rng.uniform(0, np.pi, num)
  x = np.stack([np.cos(angle) - y, np.sin(angle) * (1 - 2 * y) + 0.5 * y], axis=1)
  x += rng.normal(0, 0.05, 2) + rng.normal(0, 0.1, x.shape)  # The person's shift, and noise.
  x = x.astype(np.float32)
  return people.Person(f'person {number}', train=(x, y), test=(x[:0], y[:0]))


def _load(own: Options, split: task_lib.Split) -> task_lib.TaskData:
  """Loads the data. Read files of `split.directory` here, the value of --data_dir."""
  everyone = [_person(number) for number in range(own.people)]
  # A client is one person with all of their data, which epsilon covers. People of the test, the
  # validation and the public set are no clients.
  return people.divide(
      people.in_hashed_order(everyone, 'people'), per_client=False,
      source='synthetic: points on two half circles', split=split,
  )


def _build_model(own: Options, initializer: initializers.Initializer):
  """Returns the model with its initial weights: a body and, for --trainable=head, a last layer.

  With --trainable=all any `tff.learning.models.FunctionalModel` does.
  """
  del own
  import tensorflow as tf  # Here, so that --help need not wait for it.

  from tasks.models import cnn
  from tasks.models import split

  def body(weights, x):
    kernel, bias = weights
    return tf.nn.relu(tf.matmul(x, kernel) + bias)

  return split.SplitModel(
      body,
      weights=[*initializer.dense((2, 16)), *initializer.dense((16, 2))],
      loss_fn=cnn.cross_entropy,
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
    show=confusion_matrix.confusion_table(('upper', 'lower')),
)
