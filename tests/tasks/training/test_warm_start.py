"""Tests of rounds that start from pre-trained weights."""

import json

from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow as tf

from tasks.datasets import fashion_mnist
from tasks.models import whitening
from tasks.training import session
from tasks.training import trained
from tests.support import commands
from tests.support import small_data


def _run(data_dir, out, *arguments):
  return commands.main(commands.tiny(data_dir, out, '--seed=1', *arguments))


def _public_only(data_dir, out, *arguments):
  arguments = commands.tiny(data_dir, out, '--algorithm=public_only', '--seed=1', *arguments)
  given = ('--clients_per_round', '--rounds=', '--local_epochs', '--batch_size')
  return commands.main([a for a in arguments if not a.startswith(given)])


@pytest.fixture
def public(data_dir, tmp_path):
  out = tmp_path / 'public'
  assert _public_only(data_dir, out, '--public_examples=20') == 0
  return out


def _epsilon_after(out, rounds):
  return float(commands.rows(out / 'metrics.csv')[rounds]['epsilon'])


def _json(path):
  return json.loads(path.read_text())


class TestExecution:

  def test_public_only_has_no_rounds_and_no_clients(self, public, data_dir, capsys):
    summary = _json(public / 'summary.json')
    assert summary['rounds'] == 0 and 'epsilon' not in summary
    assert summary['uplink_megabytes'] == 0
    (row,) = commands.rows(public / 'metrics.csv')
    assert float(row['test_accuracy']) == summary['final_test_accuracy']
    # Again: nothing to do.
    assert _public_only(data_dir, public, '--public_examples=20') == 0
    assert 'already finished' in capsys.readouterr().out

  def test_rounds_start_from_the_weights_of_public_only(self, public, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    arguments = ('--algorithm=dp_fedavg', '--public_examples=20', '--warm_start=public')
    capsys.readouterr()
    assert _run(data_dir, out, *arguments) == 0
    printed = capsys.readouterr()
    assert 'Epsilon is unchanged' in ' '.join(printed.out.split())
    epochs = fashion_mnist.TASK.pretraining.epochs
    assert [line.split(',')[0] for line in printed.err.splitlines() if 'pre-training' in line] == [
        f'pre-training: epoch {epoch}/{epochs}' for epoch in range(1, epochs + 1)
    ]
    # The first row is of the initial weights.
    first = commands.rows(out / 'metrics.csv')[0]
    assert float(first['test_accuracy']) == _json(public / 'summary.json')['final_test_accuracy']
    assert _json(out / 'summary.json')['verdict'] == 'would be valid with fresh noise'

  def test_weights_of_other_runs_are_no_start(self, public, data_dir, capsys):
    said = commands.say(
        capsys, '--task=fashion_mnist', '--algorithm=public_only',
        f'--fashion_mnist_dir={data_dir}', f'--warm_start={public}/weights.npz',
    )
    assert 'warm_start' in said and 'public' in said

  @pytest.mark.parametrize('algorithm', ['fedsmp_head', 'fedavg_head'])
  def test_clients_train_the_last_layer_of_the_public_model(
      self, algorithm, public, data_dir, tmp_path
  ):
    out = tmp_path / 'run'
    arguments = (
        f'--algorithm={algorithm}', '--public_examples=20', '--warm_start=public',
        '--whiten=public', '--batch_size=5',
    )
    assert _run(data_dir, out, *arguments) == 0
    with np.load(public / 'weights.npz') as file:
      before = dict(file)
    with np.load(out / 'weights.npz') as file:
      after = dict(file)
    # Those of the task's own model, in whatever coordinates clients trained.
    assert {n: w.shape for n, w in after.items()} == {n: w.shape for n, w in before.items()}
    *body, kernel, bias = sorted(after)
    assert all(np.array_equal(before[n], after[n]) for n in body)
    assert not np.allclose(before[kernel], after[kernel], atol=1e-3)
    assert not np.allclose(before[bias], after[bias], atol=1e-6)
    # The plain model of the files is the function that the run measured.
    with flagsaver.flagsaver():
      model = trained.load_model(out)
    images, y = small_data.write_fashion_mnist(tmp_path / 'again')['t10k']
    logits = model.predict_on_batch(
        model.initial_weights, tf.constant(images[..., np.newaxis]), training=False
    ).numpy()
    assert _json(out / 'summary.json')['final_test_accuracy'] == np.mean(logits.argmax(1) == y)
    config = _json(out / 'config.json')
    assert config['num_kept'] == 4 * 10 + 10 and config['dim'] == commands.DIM

  def test_the_coordinates_follow_from_public_examples(
      self, data_dir, tmp_path, monkeypatch
  ):
    experiments, seen = [], []
    whitened, fitted = session._whitened, whitening.fitted

    def noted(experiment, weights):
      experiments.append(experiment)
      return whitened(experiment, weights)

    def noted_fit(model, weights, examples, is_scored):
      seen.append((examples, fitted(model, weights, examples, is_scored)))
      return seen[-1][1]

    monkeypatch.setattr(session, '_whitened', noted)
    monkeypatch.setattr(whitening, 'fitted', noted_fit)
    arguments = (
        '--algorithm=fedsmp_head', '--public_examples=20', '--warm_start=public',
        '--whiten=public', '--rounds=1',
    )
    assert _run(data_dir, tmp_path / 'run', *arguments) == 0
    (experiment,), ((examples, weights),) = experiments, seen
    assert examples is experiment.data.public and len(examples[0]) == 20
    matrix, mean = weights.non_trainable
    assert not np.allclose(matrix, np.eye(len(matrix)), atol=0.1) and np.abs(mean).max() > 0

  @pytest.mark.parametrize('algorithm', ['fedsmp_head', 'fedsmp_topk', 'dp_fedavg'])
  def test_a_whitened_run_resumes_in_its_coordinates(self, algorithm, data_dir, tmp_path):
    arguments = (
        f'--algorithm={algorithm}', '--public_examples=20', '--warm_start=public', '--whiten=public',
        '--batch_size=5',
    )
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    assert _run(data_dir, whole, *arguments) == 0
    budget = (_epsilon_after(whole, 2) + _epsilon_after(whole, 3)) / 2
    assert _run(data_dir, parts, *arguments, f'--epsilon_budget={budget}') == 1
    assert len(commands.rows(parts / 'metrics.csv')) == 3
    assert _run(data_dir, parts, *arguments) == 0
    assert commands.story(parts) == commands.story(whole)

  def test_a_run_that_resumes_does_not_train_again(self, public, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    arguments = ('--algorithm=dp_fedavg', '--public_examples=20', '--warm_start=public')
    assert _run(data_dir, out, *arguments) == 0
    capsys.readouterr()
    (out / 'summary.json').unlink()
    assert _run(data_dir, out, *arguments) == 0
    assert 'pre-training:' not in capsys.readouterr().err

  @pytest.mark.parametrize('flag', ['--rounds=3', '--momentum=0.5', '--clients_per_round=2'])
  def test_public_only_refuses_what_has_no_effect(self, flag, data_dir, tmp_path, capsys):
    said = commands.say(
        capsys, '--task=fashion_mnist', '--algorithm=public_only',
        f'--fashion_mnist_dir={data_dir}', flag,
    )
    name = flag.split('=')[0]
    assert said == (
        f'tasks.run: {name} has no effect with --algorithm=public_only, which trains on no client;'
        f' drop {name}.\n'
    )
