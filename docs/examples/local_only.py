"""Local training alone, beside federated training, on Shakespeare's roles.

  python -m docs.examples.local_only 1 2 3 4 5                               # Alone, five seeds.
  python -m tasks.run --task=docs.examples.local_only --algorithm=dp_fedavg  # Federated.

  python -m docs.examples.local_only 1 --task=fashion_mnist --fashion_mnist_dirichlet=0.1

The last command has clients of another task, with flags of tasks.run: each trains alone on its images but
a fifth, drawn at random.

A role trains on all of its sequences but the last fifth. The last fifths of all roles are the test
set (none of a role with fewer than five sequences). A role alone trains the last layer from the
pre-trained weights; nothing leaves the role.
"""

from concurrent import futures
import csv
import dataclasses
import os
import sys

import numpy as np

from tasks import errors
from tasks.datasets import shakespeare
from tasks.datasets import task as task_lib

_EPOCHS = (0, 10, 20, 40)
# The smallest of three tries on this test set, seed 1; 0.1 and 1 are less accurate.
_LEARNING_RATE = 0.03


def _cut(examples: task_lib.Examples) -> list[task_lib.Examples]:
  """Returns a role's sequences without the last fifth, and the last fifth, which may be empty."""
  x, y = examples
  num = len(x) - len(x) // 5
  return [(x[:num], y[:num]), (x[num:], y[num:])]


def _load(own: shakespeare.Options, split: task_lib.Split) -> task_lib.TaskData:
  if own.protocol != 'people':
    raise errors.InputError(
        f'--local_only_protocol={own.protocol} has a test part of its own. Use people.'
    )
  data = shakespeare.TASK.load(own, split)
  clients, tests = zip(*map(_cut, data.clients))
  if data.has_validation:
    return dataclasses.replace(data, clients=clients)
  owners = task_lib.Owners("the last fifth of each client's sequences", frozenset(data.client_ids))
  return dataclasses.replace(
      data, clients=clients, test=tuple(map(np.concatenate, zip(*tests))), test_owners=owners,
      split_digest=task_lib.digest_of_split(data.split_digest, owners.text),
  )


TASK = dataclasses.replace(
    shakespeare.TASK, name='local_only', title=f'{shakespeare.TASK.title}, tested on its clients',
    load=_load,
)


def accuracies(seed: int, flags: tuple[str, ...] = ()) -> list[float]:
  """Returns the accuracy in percent on the test set, after each number of `_EPOCHS` alone.

  Momentum restarts at each of these numbers. An accuracy is of all characters of the test set.

  Args:
    seed: The seed, as --seed of a run: the same public set and the same pre-trained weights.
    flags: Further flags of `tasks.run`, such as another task.
  """
  import tensorflow as tf  # Here, so that --help need not wait for it.

  from tasks.training import experiment as experiment_lib
  from tasks.training import pretraining
  from tasks.training import settings as settings_lib

  settings, *_ = settings_lib.parse([
      '--task=shakespeare', '--algorithm=fedavg', f'--seed={seed}',
      f'--learning_rate={_LEARNING_RATE}', *flags,
  ])
  seeds = experiment_lib.make_seeds(seed, None)
  experiment = experiment_lib.Experiment.build(settings, seeds)
  start, body = pretraining.pretrain(experiment)
  model = experiment.model

  def trained(values, examples, epochs, seed):
    training = dataclasses.replace(experiment.local_training(), epochs=epochs)
    weights, hparams = type(start)(values, ()), training.initial_hparams(values)
    update = training.train(model, weights, examples, hparams, seed)
    return tf.nest.map_structure(tf.subtract, values, update)

  examples_spec, seed_spec = tuple(experiment.task_model.input_spec), tf.TensorSpec([2], tf.int64)

  @tf.function(input_signature=[examples_spec, examples_spec, seed_spec], autograph=False)
  def count(train, test, seed):
    (x, y), (test_x, test_y) = ((body(x), y) for x, y in (train, test))
    is_scored = experiment.is_scored(test_y)
    numbers, own = [tf.math.count_nonzero(is_scored)], start.trainable
    for before, epochs in zip((0, *_EPOCHS), _EPOCHS):
      own = trained(own, (x, y), epochs - before, seed + epochs) if epochs else own
      predicted = tf.argmax(model.predict_on_batch((own, ()), test_x, False), -1, tf.int32)
      right = tf.logical_and(tf.equal(predicted, test_y), is_scored)
      numbers.append(tf.math.count_nonzero(right))
    return tf.stack(numbers)

  def numbers_of(client, examples):
    if settings.task != shakespeare.TASK.name:  # Images of a label may follow each other.
      order = np.random.default_rng([seed, client]).permutation(len(examples[0]))
      examples = [array[order] for array in examples]
    return count(*_cut(examples), [seeds.process, client]).numpy()

  clients = experiment.data.clients
  # TensorFlow releases Python's lock, so that CPU cores share the clients.
  with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    scored, *right = sum(pool.map(numbers_of, range(len(clients)), clients))
  return [100 * number / scored for number in right]


def main(seeds: list[int], flags: tuple[str, ...]) -> None:
  """Prints a table: accuracy and its gain over the pre-trained weights, mean ± std over seeds."""
  os.environ['TF_DETERMINISTIC_OPS'] = '1'  # As a seeded run, for the same pre-trained weights.
  from fedsmp_tff import runtime

  runtime.set_local_context()
  rows = np.array([accuracies(seed, flags) for seed in seeds])
  table = csv.writer(sys.stdout)
  table.writerow(['table', 'algorithm', 'local epochs', 'final (%)', 'gain', 'seeds'])
  for epochs, final, gain in zip(_EPOCHS, rows.T, (rows - rows[:, :1]).T):
    texts = map(_mean_and_std, (final, gain))
    table.writerow(['Local training alone', 'local_only', epochs, *texts, len(seeds)])


def _mean_and_std(values: np.ndarray) -> str:
  spread = f' ± {values.std(ddof=1):.2f}' if len(values) > 1 else ''
  return f'{values.mean():.2f}{spread}'


if __name__ == '__main__':
  own_flags = tuple(argument for argument in sys.argv[1:] if argument.startswith('--'))
  own_seeds = [argument for argument in sys.argv[1:] if argument not in own_flags]
  if not own_seeds or not all(seed.isdecimal() for seed in own_seeds):
    sys.exit(f'usage: python -m docs.examples.local_only SEED... [--FLAG...]\n\n{__doc__}')
  main([int(seed) for seed in own_seeds], own_flags)
