"""Tests of files of initial weights, and of what a claim from them on rests on."""

import json
import shutil
import types

from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow as tf

from tasks.models import whitening
from tasks.training import saved
from tasks.training import session
from tasks.training import warm_start
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

  def test_the_same_start_from_public_and_from_its_file(self, public, data_dir, tmp_path, capsys):
    capsys.readouterr()
    for source in ('public', public / 'weights.npz'):
      out = tmp_path / f'{len(str(source))}'
      arguments = ('--algorithm=dp_fedavg', '--public_examples=20', f'--warm_start={source}')
      assert _run(data_dir, out, *arguments) == 0
      printed = ' '.join(capsys.readouterr().out.split())
      assert 'epsilon is unchanged' in printed
      # The first row is of the initial weights.
      first = commands.rows(out / 'metrics.csv')[0]
      assert float(first['test_accuracy']) == _json(public / 'summary.json')['final_test_accuracy']
      assert _json(out / 'summary.json')['verdict'] == 'would be valid with fresh noise'
      assert _json(out / 'config.json')['warm_start_origin'] is None
    stories = [commands.story(path) for path in tmp_path.iterdir() if path.name.isdigit()]
    assert len(stories) == 2 and stories[0] == stories[1]

  def test_public_examples_that_may_be_clients_are_an_assumption(
      self, public, data_dir, tmp_path, capsys
  ):
    # Another seed cuts the pool in another way: a public image may now be a client's.
    arguments = commands.tiny(
        data_dir, tmp_path / 'run', '--seed=2', '--algorithm=dp_fedavg', '--public_examples=20',
        f'--warm_start={public / "weights.npz"}',
    )
    assert commands.main(arguments) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert 'epsilon assumes that those are no client\'s here' in printed
    summary = _json(tmp_path / 'run' / 'summary.json')
    assert summary['verdict'] == 'would be valid for this run alone with fresh noise'

  def test_a_private_run_s_weights_are_composed(self, data_dir, tmp_path, capsys):
    first, second = tmp_path / 'first', tmp_path / 'second'
    assert _run(data_dir, first) == 0
    start = f'--warm_start={first / "weights.npz"}'
    assert _run(data_dir, second, start) == 0
    printed = capsys.readouterr().out
    assert 'VALID FOR THIS RUN ALONE' in printed
    # A path has no place where a line may break.
    assert f'--ledger={first}' in ''.join(printed.split())
    assert _json(second / 'config.json')['warm_start_runs'] == [
        _json(first / 'config.json')['run_id']
    ]

  @pytest.mark.parametrize('other', ['--seed=2', '--public_examples=10', '--held_out=20'])
  def test_no_ledgers_cover_a_start_of_other_clients(self, other, data_dir, tmp_path, capsys):
    # Another cut of the pool: a public image of the first run may be a client's of the second,
    # and a client's image anybody's.
    first, second = tmp_path / 'first', tmp_path / 'second'
    assert _run(data_dir, first) == 0
    arguments = (f'--warm_start={first / "weights.npz"}', '--dry_run', other)
    capsys.readouterr()
    assert _run(data_dir, second, *arguments) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert 'with other clients than this run\'s, or unknown ones' in printed
    assert 'no ledgers cover them' in printed and '--ledger' not in printed

  def test_a_run_without_noise_is_no_private_run(self, data_dir, tmp_path, capsys):
    first = tmp_path / 'first'
    assert _run(data_dir, first, '--noise_multiplier=0') == 0
    capsys.readouterr()
    given = commands.tiny(
        data_dir, tmp_path / 'second', '--seed=1', f'--warm_start={first / "weights.npz"}'
    )
    assert 'without privacy: no epsilon covers its clients' in commands.say(capsys, *given[1:])

  def test_an_origin_goes_along_a_chain_and_stays_when_a_run_resumes(
      self, data_dir, tmp_path, capsys
  ):
    first, second = tmp_path / 'first', tmp_path / 'second'
    assert _run(data_dir, first, '--rounds=1') == 0
    first_id = _json(first / 'config.json')['run_id']
    source = first / 'weights.npz'
    arguments = (f'--warm_start={source}',)
    assert _run(data_dir, second, *arguments) == 0
    origin = _json(second / 'config.json')['warm_start_origin']
    assert 'a private run of fedsmp_topk' in origin
    # The file is gone, or another run's: what the run began with stays what it was.
    source.unlink()
    (first / 'config.json').write_text('{"algorithm": "public_only"}')
    (second / 'summary.json').unlink()
    assert _run(data_dir, second, *arguments) == 0
    assert _json(second / 'summary.json')['verdict'] == (
        'would be valid for this run alone with fresh noise'
    )
    digest = _json(second / 'config.json')['split_digest']
    data = types.SimpleNamespace(split_digest=digest, public=None)
    third = warm_start.origin(str(second / 'weights.npz'), data)
    assert third.text.endswith(f'; its own initial weights are {origin}')
    # All ledgers of the chain cover it.
    assert f'--ledger={second}' in third.text and f'--ledger={first}' in third.text
    assert third.runs == (first_id, _json(second / 'config.json')['run_id'])
    # A link to them is not another file.
    link = tmp_path / 'public' / 'weights.npz'
    link.parent.mkdir()
    (link.parent / 'config.json').write_text('{"algorithm": "public_only"}')
    link.symlink_to(second / 'weights.npz')
    assert warm_start.origin(str(link), data) == third

  def test_a_run_without_a_checkpoint_begins_with_the_same_file_again(
      self, public, data_dir, tmp_path, capsys
  ):
    out, file = tmp_path / 'run', tmp_path / 'weights.npz'
    file.write_bytes((public / 'weights.npz').read_bytes())
    arguments = ('--algorithm=dp_fedavg', '--public_examples=20', f'--warm_start={file}')
    assert _run(data_dir, out, *arguments) == 0
    for name in ('checkpoints', 'metrics.csv', 'timings.csv', 'privacy_ledger.jsonl'):
      path = out / name
      shutil.rmtree(path) if path.is_dir() else path.unlink()
    (out / 'summary.json').unlink()
    with np.load(public / 'weights.npz') as weights:
      np.savez(file, **{name: array + 1 for name, array in weights.items()})
    given = commands.tiny(data_dir, out, '--seed=1', *arguments)
    capsys.readouterr()
    said = commands.say(capsys, *given[1:])
    assert 'has a run that began with other weights in --warm_start=' in said

  def test_unknown_weights_are_an_assumption(self, public, data_dir, tmp_path, capsys):
    file = tmp_path / 'mine.npz'
    file.write_bytes((public / 'weights.npz').read_bytes())
    arguments = ('--algorithm=dp_fedavg', f'--warm_start={file}', '--public_examples=20')
    assert _run(data_dir, tmp_path / 'run', *arguments) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert 'epsilon assumes that they follow from no client\'s data' in printed

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
    for name in ('weights', 'weights_exponential', 'weights_tail'):
      with np.load(out / f'{name}.npz') as file:
        after = dict(file)
      # Those of the task's own model, in whatever coordinates clients trained.
      assert {n: w.shape for n, w in after.items()} == {n: w.shape for n, w in before.items()}
      *body, kernel, bias = sorted(after)
      assert all(np.array_equal(before[n], after[n]) for n in body)
      assert not np.allclose(before[kernel], after[kernel], atol=1e-3)
      assert not np.allclose(before[bias], after[bias], atol=1e-6)
    # The plain model of the files is the function that the run measured.
    with flagsaver.flagsaver():
      model = saved.load(out).model
    images, y = small_data.write_fashion_mnist(tmp_path / 'again')['t10k']
    logits = model.predict_on_batch(
        model.initial_weights, tf.constant(images[..., np.newaxis]), training=False
    ).numpy()
    assert _json(out / 'summary.json')['final_test_accuracy'] == np.mean(logits.argmax(1) == y)
    config = _json(out / 'config.json')
    assert config['num_kept'] == 4 * 10 + 10 and config['dim'] == commands.DIM

  def test_the_coordinates_follow_from_public_examples(
      self, public, data_dir, tmp_path, monkeypatch
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
    for name, source in (('a', 'public'), ('b', public / 'weights.npz')):
      arguments = (
          '--algorithm=fedsmp_head', '--public_examples=20', f'--warm_start={source}',
          '--whiten=public', '--rounds=1',
      )
      assert _run(data_dir, tmp_path / name, *arguments) == 0
    for experiment, (examples, _) in zip(experiments, seen):
      assert examples is experiment.data.public and len(examples[0]) == 20
    (_, one), (_, other) = seen
    # From the weights' file the same coordinates as from the training: not those of the start.
    matrix, mean = one.non_trainable
    assert not np.allclose(matrix, np.eye(len(matrix)), atol=0.1) and np.abs(mean).max() > 0
    for array, expected in zip(other.non_trainable, one.non_trainable):
      np.testing.assert_array_equal(array, expected)
    assert commands.story(tmp_path / 'a') == commands.story(tmp_path / 'b')

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
    for name in ('weights_exponential', 'weights_tail'):
      with np.load(whole / f'{name}.npz') as one, np.load(parts / f'{name}.npz') as other:
        assert all(np.array_equal(one[n], other[n]) for n in one)

  def test_a_run_that_resumes_does_not_train_again(self, public, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    arguments = ('--algorithm=dp_fedavg', '--public_examples=20', '--warm_start=public')
    assert _run(data_dir, out, *arguments) == 0
    capsys.readouterr()
    (out / 'summary.json').unlink()
    assert _run(data_dir, out, *arguments) == 0
    assert 'initial weights: trained' not in capsys.readouterr().out

  def test_what_can_t_start_a_run_is_refused_with_one_sentence(
      self, public, data_dir, tmp_path, capsys
  ):
    plain = tmp_path / 'plain'
    assert _run(data_dir, plain, '--algorithm=fedavg', '--rounds=1') == 0
    capsys.readouterr()
    nan = tmp_path / 'nan.npz'
    with np.load(public / 'weights.npz') as file:
      np.savez(nan, **{name: array * np.nan for name, array in file.items()})
    text, array, double = (tmp_path / name for name in ('text.npz', 'array.npy', 'double.npz'))
    text.write_text('weights')
    np.save(array, np.ones(3))
    with np.load(public / 'weights.npz') as file:
      np.savez(double, **{name: weight.astype(np.float64) for name, weight in file.items()})
    for path, problem in (
        (plain / 'weights.npz', 'is of a run of fedavg, without privacy: no epsilon covers'),
        (tmp_path / 'none.npz', "can't be read (No such file or directory)"),
        (text, "can't be read"),
        (array, "can't be read"),
        (double, "lacks weights of this model's shapes and types"),
        (nan, 'has weights that are not finite'),
    ):
      arguments = commands.tiny(
          data_dir, tmp_path / 'refused', '--algorithm=dp_fedavg', '--public_examples=20',
          f'--warm_start={path}',
      )
      said = commands.say(capsys, *arguments[1:])
      assert f'--warm_start={path} {problem}' in said and '; name the weights' in said
    arguments = commands.tiny(
        data_dir, tmp_path / 'refused', '--algorithm=dp_fedavg', '--public_examples=20',
        f'--warm_start={public / "weights.npz"}', '--fashion_mnist_dense_units=5',
    )
    assert "lacks weights of this model's shapes and types" in commands.say(capsys, *arguments[1:])
    # Without a claim, any weights will do.
    arguments = ('--algorithm=fedavg', f'--warm_start={plain / "weights.npz"}')
    assert _run(data_dir, tmp_path / 'fine', *arguments, '--public_examples=20') == 0

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
