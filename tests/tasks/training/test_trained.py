"""Tests of models loaded with their trained weights."""

import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from tasks import datasets
from tasks import errors
from tasks.training import trained
from tests.support import commands

_COMPOSING = pathlib.Path(__file__).parents[3] / 'docs' / 'composing.md'


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  out = tmp_path_factory.mktemp('run')
  assert commands.main([
      'run', '--task=shakespeare', '--algorithm=fedavg', '--shakespeare_lstm_units=8',
      '--clients_per_round=2', '--rounds=1', '--seed=1', f'--output_dir={out}',
  ]) == 0
  return out


def test_a_loaded_model_has_the_accuracy_of_its_run(run):
  model = trained.load_model(run)
  x, y = datasets.TASKS['shakespeare'].load(0, 0).test
  right = scored = 0
  for part in np.array_split(np.arange(len(x)), 10):
    logits = model.predict_on_batch(model.initial_weights, x[part], training=False).numpy()
    counts = y[part] != 0
    right += np.sum((logits.argmax(-1) == y[part]) & counts)
    scored += counts.sum()
  expected = json.loads((run / 'summary.json').read_text())['final_test_accuracy']
  assert right / scored == pytest.approx(expected, abs=1e-4)


def test_the_documents_saved_model_has_the_same_logits(run, tmp_path):
  (snippet,) = re.findall(
      r'```python\n(def save\(.*?)```', _COMPOSING.read_text(encoding='utf-8'), re.DOTALL
  )
  names = {'tf': tf}
  exec(snippet, names)
  model = trained.load_model(run)
  names['save'](model, str(tmp_path / 'model'))
  x = tf.constant(np.random.default_rng(1).integers(0, 90, [2, 80]), model.input_spec[0].dtype)
  expected = model.predict_on_batch(model.initial_weights, x, training=False)
  loaded = tf.saved_model.load(str(tmp_path / 'model'))
  np.testing.assert_allclose(loaded.logits(x), expected, rtol=1e-5, atol=1e-6)


def test_what_is_no_finished_run(run, tmp_path):
  with pytest.raises(errors.InputError, match='none has no finished run; name the --output_dir'):
    trained.load_model(tmp_path / 'none')
  (tmp_path / 'config.json').write_bytes((run / 'config.json').read_bytes())
  with pytest.raises(errors.InputError, match='has no finished run'):
    trained.load_model(tmp_path)
