"""Tests of `python -m tasks.export`: a model that TensorFlow alone loads."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tasks import datasets
from tasks import export
from tasks.config import settings
from tasks.models import initializers
from tasks.training import saved
from tests.support import commands

_CALL = """
import sys
import numpy as np
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
logits = model.logits(tf.constant(np.load(sys.argv[2])))['logits']
served = model.signatures['serving_default'](tf.constant(np.load(sys.argv[2])))['logits']
assert 'tasks' not in sys.modules and 'tensorflow_federated' not in sys.modules
np.testing.assert_array_equal(logits, served)
np.save(sys.argv[3], logits)
"""


def test_tensorflow_alone_computes_the_same_logits(data_dir, tmp_path, capsys):
  out = tmp_path / 'run'
  assert commands.main(commands.tiny(data_dir, out, '--rounds=1')) == 0
  assert export.main(['export', str(out)]) == 0
  printed = capsys.readouterr().out
  assert 'conv_2/kernel            float32[5, 5, 2, 2]' in printed
  x = np.random.default_rng(1).integers(0, 256, [3, 28, 28, 1], np.uint8)
  np.save(tmp_path / 'x.npy', x)
  # From elsewhere, where this package is not.
  subprocess.run(
      [sys.executable, '-I', '-c', _CALL, out / 'saved_model', 'x.npy', 'logits.npy'],
      check=True, cwd=tmp_path,
  )
  model = saved.load(out).model
  expected = model.predict_on_batch(model.initial_weights, x, training=False)
  np.testing.assert_allclose(np.load(tmp_path / 'logits.npy'), expected, rtol=1e-5, atol=1e-6)
  # It overwrites nothing.
  assert export.main(['export', str(out)]) == 2
  said = capsys.readouterr().err
  assert f'--output={out}/saved_model exists; remove it, or name another directory.' in said


def test_the_lstm_is_exported_without_its_gradient(tmp_path):
  parsed = settings.parse(['--task=shakespeare', '--recipe=none'])[0]
  model = datasets.TASKS['shakespeare'].build_model(initializers.INITIALIZERS['keras'](1))
  saved.Exported(saved.SavedModel(parsed, model)).save(tmp_path / 'model')
  x = np.random.default_rng(1).integers(0, 90, [2, *model.input_spec[0].shape[1:]])
  x = tf.constant(x, model.input_spec[0].dtype)
  expected = model.predict_on_batch(model.initial_weights, x, training=False)
  loaded = tf.saved_model.load(str(tmp_path / 'model'))
  np.testing.assert_allclose(loaded.logits(x)['logits'], expected, rtol=1e-5, atol=1e-6)


def test_another_file_of_weights(data_dir, tmp_path, capsys):
  out = tmp_path / 'run'
  assert commands.main(commands.tiny(data_dir, out, '--rounds=2')) == 0
  model = f'--output={tmp_path}/average'
  assert export.main(['export', str(out), '--weights=weights_exponential.npz', model]) == 0
  assert (tmp_path / 'average' / 'saved_model.pb').exists()
  assert export.main(['export', str(out), '--weights=none.npz', f'{model}_2']) == 2
  assert 'has no none.npz' in capsys.readouterr().err


@pytest.mark.parametrize('arguments', [[], ['a', 'b']])
def test_one_run_at_a_time(arguments, capsys):
  assert export.main(['export', *arguments]) == 2
  assert f'name one run directory; got {len(arguments)}.' in capsys.readouterr().err


@pytest.mark.parametrize(
    'task', [name for name, task in datasets.TASKS.items() if task.weight_names]
)
def test_every_weight_has_a_name(task):
  model = datasets.TASKS[task].build_model(initializers.INITIALIZERS['keras'](1))
  names = datasets.TASKS[task].weight_names()
  assert len(names) == len(set(names)) == len(model.initial_weights[0])
  for name, weight in zip(names, model.initial_weights[0]):
    assert (np.ndim(weight) == 1) == name.endswith('bias')
