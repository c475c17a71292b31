"""Federated EMNIST (Caldas et al. 2018) by writer, through TFF's own loader and cache."""

import numpy as np

from tasks.datasets import files
from tasks.datasets import people
from tasks.datasets import task as task_lib

_NUM_CLASSES = 62


def _load(own: None, split: task_lib.Split) -> task_lib.TaskData:
  del own
  import tensorflow_federated as tff  # pylint: disable=g-import-not-at-top

  from tasks.datasets import tff_data  # pylint: disable=g-import-not-at-top

  writers = tff_data.read_people(
      lambda cache_dir: tff.simulation.datasets.emnist.load_data(False, cache_dir),
      'emnist_all.sqlite', split.directory, _to_examples,
  )
  groups = people.in_hashed_order(writers, 'writers')
  source = f'real: federated EMNIST, {len(writers):,} writers'
  return people.divide(groups, per_client=False, source=source, split=split)


def _to_examples(elements) -> task_lib.Examples:
  if not elements:
    raise ValueError('it is listed, but has no images')
  pixels = np.stack([element['pixels'] for element in elements])
  if not np.all((0 <= pixels) & (pixels <= 1)):
    raise ValueError('a pixel is not a number from 0 to 1')
  labels = np.array([element['label'] for element in elements], np.int32)
  files.check_labels(labels, 0, _NUM_CLASSES - 1)
  # The floats are k/255, with 1 the background; the model scales them back.
  images = np.rint(pixels * 255).astype(np.uint8)
  return images[..., np.newaxis], labels


TASK = task_lib.Task(
    name='emnist',
    title='EMNIST characters by writer, CNN (not in the paper; this project\'s settings)',
    defaults=task_lib.Defaults(
        epsilon=1.01, rounds=180, clients_per_round=100, clip=1.0, p=0.01,
        learning_rate=0.125, learning_rate_decay=0.99, momentum=0.5, batch_size=20,
    ),
    load=_load,
    build_model=task_lib.cnn((28, 28, 1), (32, 64), (512,), _NUM_CLASSES),
)
