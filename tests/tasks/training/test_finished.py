"""Tests of finished runs: their flags, their size without checkpoints, and their models."""

import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tasks import errors
from tasks.training import finished
from tests.support import commands
from tests.support import runs_on_disk
from tests.support import small_data

_COMPOSING = pathlib.Path(__file__).parents[3] / 'docs' / 'aggregator.md'


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  path = tmp_path_factory.mktemp('run')
  small_data.write_fashion_mnist(path / 'data')
  assert commands.main(_command(path, path / 'run')) == 0
  return path / 'run'


def _command(path, out):
  return commands.tiny(
      path / 'data', out, '--algorithm=fedavg', '--rounds=1', '--seed=1', '--eval_examples=5'
  )


@pytest.mark.parametrize('name, value, text', [
    ('rounds', 40, '40'), ('seed', None, 'not set'), ('server_optimizer', 'fedexp', 'fedexp'),
    # None is "all", which is typed as 0: without the flag a method may have its own limit.
    ('max_client_examples', None, '0'), ('max_client_examples', 16, '16'),
    ('a_flag_of_a_module', None, 'not set'), ('a_flag_of_a_module', [1, 2], '1,2'),
])
def test_a_flag_is_written_as_it_is_typed(name, value, text):
  assert finished.flag_text(name, value) == text


def test_a_cleaned_run_is_smaller_and_finished(run, tmp_path, capsys):
  done, unfinished = tmp_path / 'done', tmp_path / 'unfinished'
  shutil.copytree(run, done)
  runs_on_disk.write(unfinished, [0.1], rounds=9)
  (unfinished / 'checkpoints').mkdir(parents=True)
  (unfinished / 'checkpoints' / 'round_0.npz').touch()
  before = commands.story(done)
  for path in (done, unfinished):
    finished.clean(path)
  assert not (done / 'checkpoints').exists() and (unfinished / 'checkpoints' / 'round_0.npz').exists()
  capsys.readouterr()
  assert commands.main(_command(run.parent, done)) == 0
  # Measurements on samples have no best accuracy.
  assert '1 rounds\n  accuracy ' in capsys.readouterr().out and commands.story(done) == before


def test_documented_saved_model_has_the_same_logits(run, tmp_path):
  (snippet,) = re.findall(
      r'```python\n(def save\(.*?)```', _COMPOSING.read_text(encoding='utf-8'), re.DOTALL
  )
  names = {'tf': tf}
  exec(snippet, names)
  model = finished.load_model(run)
  names['save'](model, str(tmp_path / 'model'))
  x = tf.constant(np.random.default_rng(1).integers(0, 256, [2, 28, 28, 1], np.uint8))
  expected = model.predict_on_batch(model.initial_weights, x, training=False)
  loaded = tf.saved_model.load(str(tmp_path / 'model'))
  np.testing.assert_allclose(loaded.logits(x), expected, rtol=1e-5, atol=1e-6)


def test_unfinished_runs_have_no_model(run, tmp_path):
  with pytest.raises(errors.InputError, match='none has no finished run .*Name the --output_dir'):
    finished.load_model(tmp_path / 'none')
  (tmp_path / 'config.json').write_bytes((run / 'config.json').read_bytes())
  with pytest.raises(errors.InputError, match='has no finished run'):
    finished.load_model(tmp_path)


def test_missing_flags_of_earlier_versions_are_defaults():
  recorded = {'p': 0.1, 'rounds': 9}
  flags = {**recorded, 'server_optimizer': 'sgd', 'unbiased': True}
  assert not finished.find_differences(recorded, flags | {'fashion_mnist_standardize': False})
  assert not finished.find_differences(recorded, flags)
  other = flags | {'server_optimizer': 'fedexp', 'unbiased': False}
  assert finished.find_differences(recorded, other) == ['server_optimizer', 'unbiased']
  assert finished.find_differences(flags, recorded) == ['server_optimizer', 'unbiased']
  # Without rounds, a flag of rounds defines nothing.
  assert finished.find_differences(recorded | {'rounds': 0}, other | {'rounds': 0}) == ['unbiased']
