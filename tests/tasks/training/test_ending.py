"""Tests of what a run shows when it is done: mistakes, and commands that work."""

import pathlib
import re
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.config import settings
from tasks.training import ending
from tests.support import commands

_ROOT = pathlib.Path(__file__).parents[3]


def _linear_model(kernel):
  """A model whose logits are x times a fixed matrix."""
  return tff.learning.models.FunctionalModel(
      initial_weights=((np.asarray(kernel, np.float32),), ()),
      predict_on_batch_fn=tf.function(lambda weights, x, training: tf.matmul(x, weights[0][0])),
      loss_fn=tf.function(lambda output, label, weight=None: 0.0),
      input_spec=(tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32)),
  )


class TestConfusion:

  def test_rows_are_true_classes(self):
    # Classes 0 and 1 are swapped, 2 is right; more examples than a batch.
    model = _linear_model([[0, 1, 0], [1, 0, 0], [0, 0, 1]])
    y = np.arange(1200, dtype=np.int32) % 3
    x = np.eye(3, dtype=np.float32)[y]
    assert ending.confusion(model, (x, y)).tolist() == [[0, 400, 0], [400, 0, 0], [0, 0, 400]]

  def test_text(self):
    text = ending.confusion_text(np.array([[3, 1], [0, 0]]), ('cat', 'dog'))
    assert text.splitlines()[1:] == ['           0   1', '  0 cat   75  25', '  1 dog    0   0']


class TestText:

  def test_it_ends_a_finished_run_and_its_commands_parse(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'runs' / 'a'
    assert commands.main(commands.tiny(data_dir, out)) == 0
    printed = capsys.readouterr().out
    # The share of right predictions is the accuracy, of rows with as many examples as they have.
    table = re.findall(r'^  \d \S.*?((?: +\d+){10})$', printed, re.MULTILINE)
    assert len(table) == 10
    found = re.findall(r'python -m (tasks\.\S+) (.*)$', printed[printed.index('\nnext\n') :], re.M)
    assert [name for name, _ in found] == ['tasks.report', 'tasks.account', 'tasks.run']
    again = settings.parse(found[-1][1].split())[0]
    assert again.algorithm == 'dp_fedavg' and again.rounds == 3

  @pytest.mark.skipif(sys.prefix == sys.base_prefix, reason='not in a virtual environment')
  def test_commands_of_an_environment_that_is_not_activated_begin_with_that(self, monkeypatch):
    parsed = settings.parse(['--task=shakespeare', '--recipe=none'])[0]
    monkeypatch.setenv('PATH', f'{sys.prefix}/bin:/usr/bin')
    assert '/bin/activate' not in ending._next_commands(parsed, pathlib.Path('runs/a'))
    monkeypatch.setenv('PATH', '/usr/bin')
    lines = ending._next_commands(parsed, pathlib.Path('runs/a')).splitlines()
    assert lines[:2] == ['next', ending._activation()[0]]
    (command,) = re.findall(r'\. (\S+/bin/activate)$', lines[1])
    assert pathlib.Path(command).resolve() == pathlib.Path(sys.prefix, 'bin/activate').resolve()
