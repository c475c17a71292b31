"""A template for a task of your own: rows of a CSV file, with a column that says whose each row is.

  python -m tasks.run --task=docs.own_rows_task --data_dir=DIRECTORY

DIRECTORY has a file rows.csv with a header, in which `user` is a person, `label` the class, and each
other column a number, such as:

  user,label,height,weight
  ann,tall,1.81,70
  bob,small,1.60,55.5

For a file with other columns, copy this module to the current directory as my_rows.py, and change
the constants below and the layers of the model. Then train with an epsilon of your choice:

  python -m tasks.run --task=my_rows --algorithm=fedsmp_randk --epsilon=8 --data_dir=DIRECTORY

A client is one person, with all of their rows: epsilon covers a person, not a row. It does not
cover the people who are set aside for the test set and the public examples, whom `--verbose` counts. With
`--algorithm=fedsmp_randk` no rows are public.
"""

import collections
import csv
import os

import numpy as np

from tasks import errors
from tasks.datasets import files
from tasks.datasets import people
from tasks.datasets import task as task_lib
from tasks.models import initializers

_FILE = 'rows.csv'
_USER, _LABEL = 'user', 'label'
# Public knowledge, written here: the model and its input must not depend on the rows of a client.
_CLASSES = ('small', 'tall')
_FEATURES = ('height', 'weight')
_MEANS, _DEVIATIONS = np.array([1.7, 70.0]), np.array([0.1, 15.0])


def _load(own: None, split: task_lib.Split) -> task_lib.TaskData:
  del own  # Options of the task: see own_task.py.
  [path] = files.find(
      [split.directory or os.curdir], [_FILE], 'Name the directory of the file with --data_dir'
  )
  rows, classes = collections.defaultdict(list), {name: i for i, name in enumerate(_CLASSES)}
  with open(path, newline='', encoding='utf-8') as file:
    reader = csv.DictReader(file)
    try:
      for row in reader:
        x = [float(row[name]) for name in _FEATURES]
        rows[row[_USER]].append((x, classes[row[_LABEL]]))
    except (KeyError, TypeError, ValueError) as error:
      raise errors.InputError(
          f'{path}, line {reader.line_num}, can\'t be read ({type(error).__name__}: {error}). Each'
          f' row needs {_USER}, {_LABEL} (one of {", ".join(_CLASSES)}), and the numbers'
          f' {", ".join(_FEATURES)}.'
      ) from None
  groups = people.in_hashed_order([_person(*item) for item in sorted(rows.items())], 'people')
  return people.divide(
      groups, per_client=False, source=f'real: {_FILE}, {len(rows):,} people', split=split
  )


def _person(name: str, rows: list[tuple[list[float], int]]) -> people.Person:
  """A person with x float32[num, features] and y int32[num]."""
  x, y = map(np.array, zip(*rows))
  x, y = ((x - _MEANS) / _DEVIATIONS).astype(np.float32), y.astype(np.int32)
  # All rows are for training: people who are set aside make the test set.
  return people.Person(name, train=(x, y), test=(x[:0], y[:0]))


def _build_model(own: None, initializer: initializers.Initializer):
  del own
  import tensorflow as tf  # Here, so that --help need not wait for it.

  from tasks.models import cnn
  from tasks.models import split

  def body(weights, x):
    kernel, bias = weights
    return tf.nn.relu(tf.matmul(x, kernel) + bias)

  return split.SplitModel(
      body,
      weights=[*initializer.dense((len(_FEATURES), 16)), *initializer.dense((16, len(_CLASSES)))],
      loss_fn=cnn.cross_entropy,
      input_spec=(
          tf.TensorSpec([None, len(_FEATURES)], tf.float32), tf.TensorSpec([None], tf.int32)
      ),
  )


TASK = task_lib.Task(
    name='own_rows',
    title='Rows of a CSV file, a small network',
    # The values of flags that are not given.
    defaults=task_lib.Defaults(
        rounds=50, clients_per_round=30, noise_multiplier=1.0, clip=0.5, learning_rate=0.3, p=0.5,
        local_epochs=2, public_examples=100,
    ),
    load=_load,
    build_model=_build_model,
)
