"""Shows a person, when all rounds are done, what the model does and what to run next.

All of it follows from the released model and from data of no client: epsilon is unchanged.
"""

import pathlib
import shutil
import sys
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import datasets
from tasks.config import settings as settings_lib
from tasks.training import experiment as experiment_lib
from tasks.training import passages

_BATCH = 500
_PROMPT, _LENGTH, _TEMPERATURE = 'ROMEO. ', 200, 0.7


def text(
    experiment: experiment_lib.Experiment,
    weights: tff.learning.models.ModelWeights,
    run_dir: pathlib.Path,
) -> str:
  """Returns lines for people.

  Args:
    experiment: The run.
    weights: Its last weights.
    run_dir: Its directory.
  """
  settings = experiment.settings
  model = experiment_lib.with_weights(experiment.model, weights)
  parts = [
      _shown(model, experiment),
      _next_commands(settings, run_dir),
  ]
  return '\n\n'.join(part for part in parts if part)


def _shown(
    model: tff.learning.models.FunctionalModel, experiment: experiment_lib.Experiment
) -> Optional[str]:
  """What the model does: a passage, or a table of its mistakes; None where neither fits."""
  if passages.writes(experiment.settings.task):
    passage = passages.passage(model, _PROMPT, _LENGTH, _TEMPERATURE, seed=0)
    return f'the model writes, after {_PROMPT.strip()!r}:\n{_PROMPT}{passage}'
  task = datasets.TASKS[experiment.settings.task]
  if not task.class_names or experiment.data.test_outside_guarantee:
    return None
  return confusion_text(confusion(model, experiment.data.test), task.class_names)


def confusion(
    model: tff.learning.models.FunctionalModel, examples: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
  """Returns a table of true classes (rows) by predicted classes, of counts, int64.

  Args:
    model: A model of logits, whose initial weights are the trained ones.
    examples: x and y; y int, from 0.
  """
  predict = tf.function(
      lambda x: model.predict_on_batch(model.initial_weights, x, training=False)
  )
  x, y = examples
  logits = np.concatenate([
      predict(tf.constant(x[i : i + _BATCH])).numpy() for i in range(0, len(x), _BATCH)
  ])
  num_classes = logits.shape[1]
  table = np.bincount(num_classes * y + logits.argmax(axis=1), minlength=num_classes**2)
  return table.reshape(num_classes, num_classes)


def confusion_text(table: np.ndarray, class_names: tuple[str, ...]) -> str:
  """Returns a table of counts as one of percent of each row, for people."""
  width = max(map(len, class_names)) + 3
  percent = 100 * table / np.maximum(table.sum(axis=1, keepdims=True), 1)
  header = ''.join(f'{i:>4}' for i in range(len(class_names)))
  rows = [
      f'  {f"{i} {name}":<{width}}' + ''.join(f'{value:>4.0f}' for value in row)
      for i, (name, row) in enumerate(zip(class_names, percent))
  ]
  return '\n'.join([
      'of the test examples of each class, the percentage that the model takes for class',
      f'  {"":<{width}}{header}',
      *rows,
  ])


def _next_commands(settings: settings_lib.RunSettings, run_dir: pathlib.Path) -> str:
  commands = []
  if passages.writes(settings.task):
    commands.append(('another passage', f"tasks.generate {run_dir} --prompt='To be, or'"))
  commands.append(('all runs there', f'tasks.report {run_dir.parent}'))
  if settings_lib.ALGORITHMS[settings.algorithm].private:
    commands.append(('its privacy in full', f'tasks.account --ledger={run_dir}'))
  others = {'dp_fedavg': 'fedavg', 'fedsmp_head': 'fedavg_head'}
  other = others.get(settings.algorithm, 'dp_fedavg')
  # A recipe, and what trains on public examples alone, has flags for its own system.
  of_task = f'--task={settings.task}'
  if settings.algorithm != settings_lib.PUBLIC_ONLY:
    recipe = settings.recipe
    of_task = f'--config={run_dir}' if recipe is None else f'{of_task} --recipe={recipe}'
  commands.append(('another system', f'tasks.run {of_task} --algorithm={other}'))
  lines = [f'  {what:<20} python -m {line}' for what, line in commands]
  return '\n'.join(['next', *_activation(), *lines])


def _activation() -> list[str]:
  """The line without which `python` is not the one that runs; none where it is."""
  if sys.prefix == sys.base_prefix or shutil.which('python') == f'{sys.prefix}/bin/python':
    return []
  try:
    prefix = pathlib.Path(sys.prefix).relative_to(pathlib.Path.cwd())
  except ValueError:
    prefix = pathlib.Path(sys.prefix)
  return [f'  {"once in a shell":<20} . {prefix}/bin/activate']
