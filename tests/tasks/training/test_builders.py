"""Tests of the flags of post-processing: what each does to a run, and that none costs epsilon."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tasks import errors
from tasks.config import settings
from tasks.training import builders
from tasks.training import plan
from tests.support import commands

# Each option, alone.
_OPTIONS = {
    'released_weight': '--released_weight=0.5',
    'precondition': '--precondition=0.5',
    'predict': '--predict=0.5',
    'clip_schedule': '--clip_schedule=learning_rate',
    'momentum': '--server_filter=momentum',
    'low_pass': '--server_filter=low_pass',
    'shrinkage': '--server_filter=shrinkage',
    'adagrad': '--server_optimizer=adagrad',
    'adam': '--server_optimizer=adam',
    'yogi': '--server_optimizer=yogi',
    'server_schedule': '--server_schedule=linear',
}


def _settings(*arguments):
  return settings.parse(['--task=fashion_mnist', *arguments])[0]


def _members(*arguments):
  return builders.post_processing(_settings(*arguments))


def _clipping_schedule(*arguments):
  s = _settings(*arguments)
  return builders.clipping_schedule(s, builders.local_training(s))


class TestComputation:

  def test_nothing_is_on_by_default(self):
    assert not _members() and _clipping_schedule() is None
    assert plan.post_processing_text(_settings()) is None
    assert isinstance(builders.server_optimizer(_settings()), tff.learning.optimizers.Optimizer)

  def test_values_arrive(self):
    members = _members(
        '--precondition=0.25', '--predict=0.75', '--server_filter=shrinkage',
        '--server_filter_decay=0.5',
    )
    assert members == [
        fedsmp_tff.Preconditioner(exponent=0.25), fedsmp_tff.Prediction(share=0.75),
        fedsmp_tff.Shrinkage(decay=0.5),
    ]
    assert _members('--server_filter=low_pass') == [fedsmp_tff.LowPass(0.9)]
    for flags, share in ((['--average_decay=0'], 1.0), ([], 0.05)):
      average = builders.exponential_average(_settings(*flags))
      assert average.share(10**6) == pytest.approx(share)

  def test_what_is_kept(self):
    def sparsifier(*arguments):
      return builders.sparsifier(_settings('--k=7', *arguments), data, num=7)

    class data:  # All that is asked of it.
      public = (np.zeros([9, 2]), np.zeros(9))
      public_client_examples = 5

    assert sparsifier('--algorithm=fedsmp_released', '--explore=0.3') == (
        fedsmp_tff.ReleasedTopK(num=7, explore=0.3)
    )
    head = _settings('--algorithm=fedsmp_head')
    assert builders.sparsifier(head, data, num=7) == fedsmp_tff.Head(7)
    # A last layer's matrix and bias.
    assert builders.num_kept(head, [6, 2, 12, 3]) == 15
    hybrid = sparsifier('--released_weight=0.25')
    assert isinstance(hybrid, fedsmp_tff.HybridTopK) and hybrid.released_weight == 0.25
    assert sparsifier('--released_weight=0').released_weight == 0
    assert type(sparsifier()) is fedsmp_tff.TopK
    # By default a quarter of the nine examples each, for five rounds; the paper's way for each.
    kinds = ((), ('--public_clients=0',), ('--public_steps=3',), ('--released_weight=0.5',))
    made = [sparsifier(*flags) for flags in kinds]
    assert [(one.public_clients, one.public_client_examples, one.mask_rounds) for one in made] == [
        (4, 2, 5), (None, None, 1), (None, None, 1), (4, 2, 1),
    ]
    one = sparsifier('--public_clients=1')
    assert (one.public_clients, one.public_client_examples, one.mask_rounds) == (1, 5, 1)
    both = sparsifier('--public_clients=3', '--public_client_examples=1')
    assert (both.public_clients, both.public_client_examples) == (3, 1)
    with pytest.raises(errors.InputError, match='--public_clients=2 of 5 .*there are 9; lower it'):
      sparsifier('--public_clients=2')
    class data:
      public = (np.zeros([3, 2]), np.zeros(3))
      public_client_examples = 5

    assert sparsifier().public_clients is None
    assert sparsifier('--mask_rounds=4').mask_rounds == 4

  def test_c_falls_as_the_learning_rate(self):
    share = _clipping_schedule(
        '--clip_schedule=learning_rate', '--learning_rate=0.5', '--learning_rate_decay=0.9',
        '--learning_rate_decay_rounds=10',
    )
    for round_num, expected in ((0, 1), (9, 1), (10, 0.9), (35, 0.9**3)):
      assert float(share(tf.constant(round_num))) == pytest.approx(expected, rel=1e-6)

  def test_the_servers_rate_falls_in_a_line(self):
    optimizer = builders.server_optimizer(
        _settings('--server_schedule=linear', '--server_learning_rate=8', '--rounds=4')
    )
    state = optimizer.initialize(tf.TensorSpec([]))
    weight, steps = tf.constant(0.0), []
    for _ in range(4):
      state, moved = optimizer.next(state, weight, tf.constant(-1.0))
      steps.append(float(moved - weight))
      weight = moved
    assert steps == pytest.approx([8, 6, 4, 2])

  @pytest.mark.parametrize('name', _OPTIONS)
  def test_the_plan_says_it(self, name):
    text = plan.post_processing_text(_settings(_OPTIONS[name]))
    assert text.endswith('epsilon is unchanged')
    others = {plan.post_processing_text(_settings(flag)) for flag in _OPTIONS.values()}
    assert len(others) == len(_OPTIONS)


class TestExecution:

  def test_each_option_changes_weights_and_not_epsilon(self, data_dir, tmp_path, capsys):
    common = [
        '--seed=1', '--p=0.2', '--learning_rate_decay=0.5', '--server_learning_rate=0.01',
    ]
    found, epsilons = {}, set()
    for name, flag in {'none': '--rounds=3', **_OPTIONS}.items():
      out = tmp_path / name
      assert commands.main(commands.tiny(data_dir, out, *common, flag)) == 0
      printed = ' '.join(capsys.readouterr().out.split())
      assert ('epsilon is unchanged' in printed) == (name != 'none')
      assert 'server\'s rate 0.01' in printed
      found[name] = commands.story(out)[1]
      rows = commands.rows(out / 'metrics.csv')
      epsilons.add(tuple((row['epsilon'], row['epsilon_paper']) for row in rows))
      norms = [float(row['clipping_norm']) for row in rows[1:]]
      assert norms == ([1, 0.5, 0.25] if name == 'clip_schedule' else [1, 1, 1])
    assert len(epsilons) == 1
    assert len(set(found.values())) == len(found)

  def test_an_interrupted_run_remembers(self, data_dir, tmp_path, capsys):
    # All that has a memory: what a checkpoint does not hold would make another story.
    flags = [
        '--algorithm=fedsmp_released', '--precondition=0.5', '--predict=0.5',
        '--server_filter=low_pass', '--server_optimizer=yogi', '--seed=1', '--rounds=5',
        '--clip_schedule=learning_rate', '--server_schedule=linear',
    ]
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    assert commands.main(commands.tiny(data_dir, whole, '--rounds_per_checkpoint=1', *flags)) == 0
    # As if it had ended after the third round: the rows of two more were not yet checkpointed.
    shutil.copytree(
        whole, parts, ignore=shutil.ignore_patterns('round_[45]', 'summary.json', 'weights*')
    )
    assert commands.main(commands.tiny(data_dir, parts, *flags)) == 0
    assert 'resuming after round 3 of 5' in capsys.readouterr().out
    assert commands.story(parts) == commands.story(whole)
    for name in ('weights_exponential.npz', 'weights_tail.npz'):
      with np.load(whole / name) as one, np.load(parts / name) as other:
        assert all(np.array_equal(one[key], other[key]) for key in one)

  def test_averages_are_measured_at_the_end(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    assert commands.main(
        commands.tiny(data_dir, out, '--seed=1', '--rounds=12', '--average_decay=0.5')
    ) == 0
    printed = capsys.readouterr().out
    summary = json.loads((out / 'summary.json').read_text())
    rows = commands.rows(out / 'metrics.csv')
    for name, text in (('exponential', 'exponential average'), ('tail', 'mean over the second')):
      measured = [int(row['round']) for row in rows if row[f'test_accuracy_{name}']]
      assert measured == [10, 12]
      final = float(rows[-1][f'test_accuracy_{name}'])
      assert summary[f'final_test_accuracy_{name}'] == final
      assert f'{100 * final:.2f} % of the weights\' {text}' in printed
      with np.load(out / f'weights_{name}.npz') as average:
        assert sum(average[key].size for key in average) == commands.DIM

  def test_held_out_examples_are_no_test_examples(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    # 60 examples: 8 public ones, 16 held out, 36 of twelve clients. Unlike the 20 test ones
    # they are 16ths.
    assert commands.main(commands.tiny(data_dir, out, '--seed=1', '--held_out=16')) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert '16 of them HELD OUT in place of the test set' in printed
    assert '12 clients with 36 examples' in printed and '16 held-out examples' in printed
    for row in commands.rows(out / 'metrics.csv'):
      assert (16 * float(row['test_accuracy'])) % 1 == 0
