"""Tests of the flags of post-processing: what each does to a run, and that none costs epsilon."""

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
    'clip_schedule': '--clip_schedule=learning_rate',
    'server_schedule': '--server_schedule=linear',
}


def _settings(*arguments):
  return settings.parse(['--task=fashion_mnist', *arguments])[0]


def _clipping_schedule(*arguments):
  s = _settings(*arguments)
  return builders.clipping_schedule(s, builders.local_training(s))


class TestComputation:

  def test_nothing_is_on_by_default(self):
    assert _clipping_schedule() is None
    assert plan.post_processing_text(_settings()) is None
    assert isinstance(builders.server_optimizer(_settings()), tff.learning.optimizers.Optimizer)

  def test_what_is_kept(self):
    def sparsifier(*arguments, num_public=9):
      class data:  # All that is asked of it.
        public = (np.zeros([num_public, 2]), np.zeros(num_public))

      return builders.sparsifier(_settings('--p=0.25', *arguments), data, num=7)

    assert sparsifier('--algorithm=fedsmp_released') == fedsmp_tff.ReleasedTopK(0.25)
    assert sparsifier('--algorithm=fedsmp_randk', '--mask_rounds=3') == (
        fedsmp_tff.RandK(0.25, mask_rounds=3)
    )
    head = _settings('--algorithm=fedsmp_head')
    assert builders.sparsifier(head, None, num=7) == fedsmp_tff.Head(7)
    assert builders.sparsifier(_settings('--algorithm=dp_fedavg'), None, 7) == fedsmp_tff.Dense()
    # A last layer's matrix and bias.
    assert builders.num_kept(head, [6, 2, 12, 3]) == 15
    assert builders.num_kept(_settings('--p=0.25'), [6, 2, 12, 4]) == 6
    assert builders.num_kept(_settings('--algorithm=dp_fedavg'), [6, 2, 12, 3]) == 23
    hybrid = sparsifier('--released_weight=0.25')
    assert isinstance(hybrid, fedsmp_tff.HybridTopK) and hybrid.released_weight == 0.25
    assert sparsifier('--released_weight=0').released_weight == 0
    assert type(sparsifier()) is fedsmp_tff.TopK and sparsifier().compression_ratio == 0.25
    # By default four pseudo-clients, for five rounds; the paper's way for each.
    kinds = ((), ('--public_clients=0',), ('--public_clients=9',), ('--released_weight=0.5',))
    made = [sparsifier(*flags) for flags in kinds]
    assert [(one.public_clients, one.mask_rounds) for one in made] == [
        (4, 5), (None, 1), (9, 1), (4, 1),
    ]
    with pytest.raises(
        errors.InputError, match='--public_clients=10 is more than the 9 public examples; lower it'
    ):
      sparsifier('--public_clients=10')
    assert sparsifier(num_public=3).public_clients is None
    assert sparsifier('--mask_rounds=4').mask_rounds == 4

  def test_the_guarantee_is_for_the_clients_in_the_data(self):
    found = [
        builders.privacy_spec(
            settings.parse(['--task=shakespeare', '--rounds=5', *flags])[0], 1137, num_kept=99
        )
        for flags in ([], ['--noise=discrete_gaussian', '--clip_quantile=0.5'])
    ]
    for spec in found:
      # Whatever the paper assumes.
      assert (spec.population, spec.delta) == (1137, 1137**-1.1)
    # Noise in reals is as good for any k; of integers the vote on C is one more.
    assert [spec.num_values for spec in found] == [None, 100]

  @pytest.mark.parametrize('task, rounds', [('fashion_mnist', 1), ('shakespeare', 50)])
  def test_c_falls_as_the_learning_rate(self, task, rounds):
    s, *_ = settings.parse(
        [f'--task={task}', '--clip_schedule=learning_rate', '--learning_rate=0.5']
    )
    share = builders.clipping_schedule(s, builders.local_training(s))
    for round_num, falls in ((0, 0), (rounds - 1, 0), (rounds, 1), (4 * rounds - 1, 3)):
      expected = pytest.approx(0.99**falls, rel=1e-6)
      assert float(share(tf.constant(round_num))) == expected

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
    common = ['--seed=1', '--p=0.2', '--server_learning_rate=0.01']
    found, epsilons = {}, set()
    options = {name: flag for name, flag in _OPTIONS.items() if name != 'released_weight'}
    for name, flag in {'none': '--rounds=3', **options}.items():
      out = tmp_path / name
      assert commands.main(commands.tiny(data_dir, out, *common, flag)) == 0
      printed = ' '.join(capsys.readouterr().out.split())
      assert ('epsilon is unchanged' in printed) == (name != 'none')
      assert 'server\'s rate 0.01' in printed
      found[name] = commands.story(out)[1]
      rows = commands.rows(out / 'metrics.csv')
      epsilons.add(tuple((row['epsilon'], row['epsilon_paper']) for row in rows))
      norms = [float(row['clipping_norm']) for row in rows[1:]]
      falls = [1, 0.99, 0.99**2] if name == 'clip_schedule' else [1, 1, 1]
      assert norms == pytest.approx(falls, rel=1e-6)
    assert len(epsilons) == 1
    assert len(set(found.values())) == len(found)

  @pytest.mark.parametrize('flags', [
      ('--algorithm=fedsmp_released', '--clip_schedule=learning_rate', '--server_schedule=linear'),
      ('--algorithm=fedsmp_topk', '--released_weight=0.5', '--clip_quantile=0.5', '--mask_rounds=2'),
  ])
  def test_an_interrupted_run_remembers(
      self, flags, data_dir, tmp_path, capsys, checkpoint_each_round
  ):
    # All that has a memory: what a checkpoint does not hold would make another story.
    flags = [*flags, '--seed=1', '--rounds=5']
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    assert commands.main(commands.tiny(data_dir, whole, *flags)) == 0
    # As if it had ended after the third round: the rows of two more were not yet checkpointed.
    shutil.copytree(
        whole, parts, ignore=shutil.ignore_patterns('round_[45]', 'summary.json', 'weights*')
    )
    assert commands.main(commands.tiny(data_dir, parts, *flags)) == 0
    assert 'resuming after round 3 of 5' in capsys.readouterr().out
    assert commands.story(parts) == commands.story(whole)

  def test_held_out_examples_are_no_test_examples(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    # 60 examples: 8 public ones, 16 held out, 36 of twelve clients. Unlike the 20 test ones
    # they are 16ths.
    flags = ('--algorithm=fedsmp_topk', '--seed=1', '--held_out=16')
    assert commands.main(commands.tiny(data_dir, out, *flags)) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert '16 of them HELD OUT in place of the test set' in printed
    assert '12 clients with 36 examples' in printed and '16 held-out examples' in printed
    for row in commands.rows(out / 'metrics.csv'):
      assert (16 * float(row['test_accuracy'])) % 1 == 0
