"""Tests of rounds that start from pre-trained weights."""

import json

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff.privacy import ledger as ledger_lib
from tasks import account
from tasks.datasets import fashion_mnist
from tasks.training import features
from tasks.training import finished
from tests.support import commands
from tests.support import small_data

_HEAD = ('--trainable=head', '--warm_start=public', '--public_examples=20', '--batch_size=5')


def _run(data_dir, out, *arguments):
  return commands.main(commands.tiny(data_dir, out, '--seed=1', *arguments))


def _public_only(data_dir, out, *arguments):
  return _run(data_dir, out, '--algorithm=public_only', *arguments)


@pytest.fixture(scope='module')
def public(tmp_path_factory):
  made = tmp_path_factory.mktemp('public')
  small_data.write_fashion_mnist(made / 'data')
  assert _public_only(made / 'data', made / 'run', '--public_examples=20') == 0
  return made / 'run'


def _json(path):
  return json.loads(path.read_text())


def test_public_only_has_no_rounds_and_no_clients(public, data_dir, tmp_path, capsys):
  summary = _json(public / 'summary.json')
  assert summary['rounds'] == 0 and 'epsilon' not in summary
  assert summary['uplink_megabytes'] == 0
  (row,) = commands.rows(public / 'metrics.csv')
  assert float(row['test_accuracy']) == summary['final_test_accuracy']
  # Again: nothing to do. Flags of rounds have no effect.
  assert _public_only(data_dir, public, '--public_examples=20', '--learning_rate=7') == 0
  assert 'already finished' in capsys.readouterr().out
  assert _public_only(data_dir, tmp_path / 'other', '--public_examples=20') == 0
  assert capsys.readouterr().out.count('epsilon = 0: no round uses data of clients') == 2


@pytest.mark.parametrize('flags', [
    ('--algorithm=fedavg',), ('--algorithm=fedsmp_topk', '--public_examples=20'),
    ('--algorithm=dp_fedavg', *_HEAD),
])
def test_zero_rounds_measure_the_first_row_of_a_run(
    flags, data_dir, tmp_path, capsys
):
  none, some = tmp_path / 'none', tmp_path / 'some'
  assert _run(data_dir, none, *flags, '--rounds=0') == 0
  printed = ' '.join(capsys.readouterr().out.split())
  assert printed.count('epsilon = 0: no round uses data of clients') == 2
  assert 'NO PRIVACY' not in printed and 'honest reports' not in printed
  assert _run(data_dir, some, *flags, '--rounds=1') == 0
  (row,) = commands.rows(none / 'metrics.csv')
  assert row == commands.rows(some / 'metrics.csv')[0]
  names = [{path.name.split('.')[0] for path in out.iterdir()} for out in (none, some)]
  assert names[0] == names[1]
  assert ledger_lib.read(none / 'privacy_ledger.jsonl').rounds == []
  summary = _json(none / 'summary.json')
  assert summary['final_test_accuracy'] == float(row['test_accuracy'])
  assert {summary.get(name, 0) for name in ('rounds', 'epsilon', 'rounds_charged')} == {0}
  _, told, _ = commands.of_module(capsys, account, str(none), str(some))
  assert f'{none}: no federated round has begun\n' in told


def test_rounds_start_from_the_weights_of_public_only(public, data_dir, tmp_path, capsys):
  out = tmp_path / 'run'
  arguments = ('--algorithm=dp_fedavg', '--public_examples=20', '--warm_start=public')
  capsys.readouterr()
  assert _run(data_dir, out, *arguments, '--verbose') == 0
  printed = capsys.readouterr()
  assert 'epsilon unchanged' in ' '.join(printed.out.split())
  epochs = 10 * fashion_mnist.TASK.pretraining.epochs  # Of 20 examples.
  assert [line.split(',')[0] for line in printed.err.splitlines() if 'pre-training' in line] == [
      f'pre-training: epoch {epoch}/{epochs}' for epoch in range(1, epochs + 1)
  ]
  # The first row is about the initial weights.
  first = commands.rows(out / 'metrics.csv')[0]
  assert float(first['test_accuracy']) == _json(public / 'summary.json')['final_test_accuracy']
  digest = _json(out / 'config.json')['public_digest']
  _, named, _ = commands.of_module(capsys, account, f'--ledger={out}')
  assert f'; initial weights: pre-trained on public examples, digest {digest}\n' in named
  # A run that resumes does not train again.
  (out / 'summary.json').unlink()
  assert _run(data_dir, out, *arguments) == 0
  assert 'pre-training:' not in capsys.readouterr().err


@pytest.mark.parametrize('flags', [
    ('--algorithm=dp_fedavg',), ('--algorithm=fedsmp_topk', '--p=0.4'),
])
def test_rounds_train_the_last_layer_of_the_public_model(
    flags, public, data_dir, tmp_path, monkeypatch
):
  seen, split = [], features.split

  def noted(model, weights, examples, is_scored):
    seen.append((examples, split(model, weights, examples, is_scored)))
    return seen[-1][1]

  monkeypatch.setattr(features, 'split', noted)
  out = tmp_path / 'run'
  assert _run(data_dir, out, *flags, *_HEAD) == 0
  # The body follows from public examples alone.
  (((x, _), (body, _)),) = seen
  assert len(x) == 20 and np.abs(body.mean).max() > 0
  with np.load(public / 'weights.npz') as file:
    before = dict(file)
  with np.load(out / 'weights.npz') as file:
    after = dict(file)
  # The file has the weights of the task's own model.
  assert {n: w.shape for n, w in after.items()} == {n: w.shape for n, w in before.items()}
  *body, kernel, bias = sorted(after)
  assert all(np.array_equal(before[n], after[n]) for n in body)
  assert not np.allclose(before[kernel], after[kernel], atol=1e-3)
  assert not np.allclose(before[bias], after[bias], atol=1e-6)
  # The task's model with these weights is the function that the run measured. Rounded features move
  # the mean loss in the third digit, and may flip one of 20 predictions.
  model = finished.load_model(out)
  images, y = small_data.write_fashion_mnist(tmp_path / 'again')['t10k']
  logits = model.predict_on_batch(
      model.initial_weights, tf.constant(images[..., np.newaxis]), training=False
  ).numpy()
  summary = _json(out / 'summary.json')
  loss = float(model.loss(logits, y.astype(np.int32)))
  assert summary['final_test_loss'] == pytest.approx(loss, rel=0.005)
  assert abs(summary['final_test_accuracy'] - np.mean(logits.argmax(1) == y)) <= 1.01 / len(y)
  config = _json(out / 'config.json')
  assert config['dim'] == 4 * 10 + 10
  assert config['num_kept'] == (20 if '--p=0.4' in flags else 50)


@pytest.mark.slow
@pytest.mark.parametrize(
    'flags', [('--algorithm=dp_fedavg',), ('--algorithm=fedsmp_released', '--p=0.5')]
)
def test_a_run_on_features_resumes_with_its_body(flags, data_dir, tmp_path, capsys):
  whole, parts = tmp_path / 'whole', tmp_path / 'parts'
  assert _run(data_dir, whole, *flags, *_HEAD) == 0
  budget = np.mean([float(row['epsilon']) for row in commands.rows(whole / 'metrics.csv')[2:4]])
  assert _run(data_dir, parts, *flags, *_HEAD, f'--epsilon_budget={budget}') == 1
  assert len(commands.rows(parts / 'metrics.csv')) == 3
  body = parts / 'checkpoints' / 'body.npz'
  content = body.read_bytes()
  for damaged in (b'', content[:-40]):
    body.write_bytes(damaged)
    assert _run(data_dir, parts, *flags, *_HEAD) == 2
    said = capsys.readouterr().err
    assert 'body.npz can\'t be read' in said and '--overwrite' in said
  body.write_bytes(content)
  assert _run(data_dir, parts, *flags, *_HEAD) == 0
  assert 'pre-training:' not in capsys.readouterr().err
  assert commands.story(parts) == commands.story(whole)
