"""Tests of `python -m tasks.generate` and of models loaded with their trained weights."""

import json

import numpy as np
import pytest

from tasks import datasets
from tasks import generate
from tasks.datasets import shakespeare
from tasks.training import saved
from tests.support import commands
from tests.support import runs_on_disk


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  out = tmp_path_factory.mktemp('run')
  assert commands.main([
      'run', '--task=shakespeare', '--algorithm=fedavg', '--shakespeare_lstm_units=8',
      '--clients_per_round=2', '--local_steps=2', '--rounds=1', '--seed=1', f'--output_dir={out}',
  ]) == 0
  return out


def test_a_loaded_model_has_the_accuracy_of_its_run(run):
  model = saved.load(run).model
  x, y = datasets.TASKS['shakespeare'].load(0, 0).test
  right = scored = 0
  for part in np.array_split(np.arange(len(x)), 10):
    logits = model.predict_on_batch(model.initial_weights, x[part], training=False).numpy()
    counts = y[part] != 0
    right += np.sum((logits.argmax(-1) == y[part]) & counts)
    scored += counts.sum()
  expected = json.loads((run / 'summary.json').read_text())['final_test_accuracy']
  assert right / scored == pytest.approx(expected, abs=1e-4)


def test_a_passage_continues_the_prompt(run, capsys):
  flags = ('--prompt=ROMEO. But', '--length=100', '--seed=3')
  status, printed, _ = commands.of_module(capsys, generate, str(run), *flags)
  assert status == 0 and printed.startswith('ROMEO. But')
  # The prompt, a hundred characters and the end of the line.
  assert len(printed) == 10 + 100 + 1
  assert all(shakespeare.to_tokens(c.encode())[1] in shakespeare.CHARACTER_TOKENS for c in printed)
  assert commands.of_module(capsys, generate, str(run), *flags)[1] == printed
  # Near zero the likeliest character, whatever the draw.
  cold = [
      commands.of_module(
          capsys, generate, str(run), '--length=20', '--temperature=1e-6', f'--seed={seed}'
      )[1]
      for seed in (1, 2)
  ]
  assert cold[0] == cold[1]


def test_one_sentence_for_what_writes_no_text(run, tmp_path, capsys):
  other = runs_on_disk.write(tmp_path / 'other', [0.1, 0.2])
  unfinished = tmp_path / 'unfinished'
  unfinished.mkdir()
  (unfinished / 'config.json').write_bytes((run / 'config.json').read_bytes())
  for arguments, sentence in (
      ([], 'name one run directory; got 0'),
      ([str(other)], 'is a run of fashion_mnist, whose model writes no text'),
      ([str(tmp_path / 'none')], 'has no run with a config.json'),
      ([str(unfinished)], 'has no weights.npz; let the run end first'),
      ([str(run), '--temperature=0'], '--temperature must be a finite number > 0; got 0'),
  ):
    assert sentence in commands.refused(capsys, generate, *arguments)
