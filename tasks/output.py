"""A run's directory: config.json, metrics.csv, timings.csv, events, weights, summary."""

import contextlib
import csv
import json
import math
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import errors

_CONFIG, _METRICS, _TIMINGS = 'config.json', 'metrics.csv', 'timings.csv'
_SUMMARY, _WEIGHTS = 'summary.json', 'weights.npz'


class RunDirectory:
  """Writes the files of one run; each row is on disk before the next round begins.

  metrics.csv holds nothing that differs between two runs of one seed; times are in
  timings.csv.
  """

  def __init__(self, path: str):
    """Makes the directory.

    Args:
      path: Where; parents are made too.

    Raises:
      InputError: If it can't be written, or holds a run already.
    """
    self.path = pathlib.Path(path)
    if (self.path / _METRICS).exists():
      raise errors.InputError(
          f'--output_dir={path} holds a run already; name another directory, or'
          ' remove that one.'
      )
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      (self.path / _CONFIG).touch()
    except OSError as error:
      raise errors.InputError(
          f'--output_dir={path} can\'t be written ({error.strerror}); name a'
          ' directory that can.'
      ) from None
    self._tables = {}
    self._events = None

  def discard(self) -> None:
    """Takes back what the initializer made, when the run can't start after all."""
    (self.path / _CONFIG).unlink()
    with contextlib.suppress(OSError):  # It may have held other files before.
      self.path.rmdir()

  def write_config(self, config: dict[str, Any]) -> None:
    _write_json(self.path / _CONFIG, config)

  def write_summary(self, summary: dict[str, Any]) -> None:
    _write_json(self.path / _SUMMARY, summary)

  def add_metrics(self, row: dict[str, Any]) -> None:
    """Adds a row; None values are left blank. `row['round']` is the step of events."""
    self._add_row(_METRICS, row)
    if self._events is None:
      self._events = tf.summary.create_file_writer(str(self.path))
    with self._events.as_default(step=row['round']):
      for name, value in row.items():
        if name != 'round' and value is not None:
          tf.summary.scalar(name, value)
    self._events.flush()

  def add_timings(self, row: dict[str, Any]) -> None:
    self._add_row(_TIMINGS, row)

  def write_weights(self, weights: Any) -> None:
    """Trainable and non-trainable weights, in order, as arrays of an .npz file."""
    arrays = {
        f'{kind}_{position}': np.asarray(array)
        for kind in ('trainable', 'non_trainable')
        for position, array in enumerate(tf.nest.flatten(getattr(weights, kind)))
    }
    np.savez(self.path / _WEIGHTS, **arrays)

  def close(self) -> None:
    for file, _ in self._tables.values():
      file.close()
    if self._events is not None:
      self._events.close()

  def _add_row(self, name: str, row: dict[str, Any]) -> None:
    if name not in self._tables:
      file = open(self.path / name, 'w', newline='', encoding='utf-8')
      writer = csv.DictWriter(file, list(row))
      writer.writeheader()
      self._tables[name] = file, writer
    file, writer = self._tables[name]
    writer.writerow(row)
    file.flush()


def _write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
  text = json.dumps(_finite(content), indent=2, allow_nan=False)
  path.write_text(text + '\n', encoding='utf-8')


def _finite(content: Any) -> Any:
  """JSON has no infinity (epsilon without noise): it becomes the text 'inf'."""
  if isinstance(content, dict):
    return {name: _finite(value) for name, value in content.items()}
  if isinstance(content, float) and not math.isfinite(content):
    return str(content)
  return content
