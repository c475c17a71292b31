"""Writes directories as tasks.run does, with any figures, for tests of their readers."""

import csv
import json
import pathlib

from tasks.experiments import grids
from tasks.training import settings as settings_lib

_DIM = 1_663_370
_PAPER = pathlib.Path(settings_lib.__file__).parents[1] / 'experiments/paper/fashion_mnist.flags'


def write(
    path, accuracies, algorithm='fedsmp_topk', p=0.005, rounds=None, seed=1, flagfile=_PAPER,
    **flags,
):
  """Writes a run of Fashion-MNIST with `accuracies[i]` after round i (None: not measured).

  `rounds` 'all': the paper's 180 rounds; the last round has the last of `accuracies`.
  """
  if rounds == 'all':
    accuracies = [*accuracies[:-1], *[None] * (181 - len(accuracies)), accuracies[-1]]
    rounds = 180
  rounds = max(len(accuracies) - 1, 1) if rounds is None else rounds
  arguments = [
      f'--flagfile={flagfile}', f'--algorithm={algorithm}', f'--seed={seed}',
      *([f'--rounds={rounds}'] if algorithm != 'public_only' else []),
      *(f'--{name}={value}' for name, value in flags.items()),
  ]
  if algorithm.endswith(('topk', 'randk', 'released')):
    arguments.append(f'--p={p}')
  else:
    p = 1
  settings = grids.Cell.of(arguments).settings
  config = dict(
      settings_lib.identity(settings),
      flags=settings_lib.identity(settings),
      dim=_DIM,
      sampled=False,
      num_kept=round(p * _DIM),
      privacy=(
          # The noise multiplier that follows from --epsilon is not tested here.
          {'noise_multiplier': 1.085 if settings.epsilon else settings.noise_multiplier}
          if settings.clip is not None
          else None
      ),
  )
  # Less noise than the paper's costs more.
  sigma = config['privacy'] and (config['privacy']['noise_multiplier'] or 1.4)
  path.mkdir(parents=True)
  (path / 'config.json').write_text(json.dumps(config))
  write_csv(path / 'metrics.csv', [
      {
          'round': i,
          'test_loss': '' if accuracy is None else 1 - accuracy,
          'test_accuracy': '' if accuracy is None else accuracy,
          **({'epsilon': 0.14 / sigma * i, 'epsilon_paper': 0.28 / sigma * i} if sigma else {}),
          'uplink_megabytes': 0.01 * p * i,
      }
      for i, accuracy in enumerate(accuracies)
  ])
  write_csv(path / 'timings.csv', [
      {'round': i, 'round_seconds': 1.0 * (i > 0), 'evaluation_seconds': 0.5 * (i > 0)}
      for i in range(len(accuracies))
  ])
  return path


def write_csv(path, rows):
  """Writes dictionaries as a table."""
  with open(path, 'w', encoding='utf-8', newline='') as file:
    if rows:
      writer = csv.DictWriter(file, list(rows[0]))
      writer.writeheader()
      writer.writerows(rows)
