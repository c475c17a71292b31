"""Shows the classifier of a finished run: a confusion matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import typing

import numpy as np

if typing.TYPE_CHECKING:
  import tensorflow_federated as tff

_BATCH = 500
_TITLE = 'confusion matrix: % of each true class (row) predicted as class (column)'


def confusion_table(
    class_names: Sequence[str],
) -> Callable[[tff.learning.models.FunctionalModel, tuple[np.ndarray, np.ndarray]], str]:
  """Returns a `Task.show`: the confusion matrix of classes with these names, in their order."""
  num = len(class_names)
  width = max(map(len, class_names)) + 3

  def show(model, test):
    import tensorflow as tf  # pylint: disable=g-import-not-at-top

    from tasks.models import predictions  # pylint: disable=g-import-not-at-top

    x, y = test
    logits = [
        model.predict_on_batch(model.initial_weights, x[i : i + _BATCH], training=False)
        for i in range(0, len(x), _BATCH)
    ]
    predicted = predictions.predicted_labels(tf.concat(logits, 0), tf.constant(y)).numpy()
    table = np.bincount((num * y + predicted).ravel(), minlength=num**2).reshape(num, num)
    percent = 100 * table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    lines = [_TITLE, ' ' * (width + 2) + ''.join(f'{i:>4}' for i in range(num))]
    for i, (name, row) in enumerate(zip(class_names, percent)):
      lines.append(f'  {f"{i} {name}":<{width}}' + ''.join(f'{value:>4.0f}' for value in row))
    return '\n'.join(lines)

  return show
