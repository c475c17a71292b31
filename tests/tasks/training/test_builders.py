"""Tests of the flags of post-processing: what each does to a run, and that none costs epsilon."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tasks import errors
from tasks.cli import settings
from tasks.training import builders
from tests.support import commands
from tests.support import tiny_models

# Each option, alone, and what the plan says of it.
_OPTIONS = {
    '--released_weight=0.5': '',
    '--clip_schedule=learning_rate': '; C decays with the learning rate of clients',
    '--server_learning_rate_schedule=linear_decay': ', linear decay to zero',
}


def _settings(*arguments):
  return settings.parse(['--task=fashion_mnist', *arguments])[0]


def _clipping_schedule(*arguments):
  s = _settings(*arguments)
  return builders.clipping_schedule(s, builders.local_training(s))


class TestComputation:

  def test_nothing_is_on_by_default(self):
    assert _clipping_schedule() is None
    assert isinstance(builders.server_optimizer(_settings()), tff.learning.optimizers.Optimizer)

  def test_a_head_needs_a_model_whose_last_layer_is_known(self):
    model = tiny_models.linear_regression()
    assert builders.trained_model(_settings('--trainable=all'), model) is model
    head = _settings('--algorithm=dp_fedavg', '--warm_start=public', '--trainable=head')
    with pytest.raises(errors.InputError, match='Return a tasks.models.split.SplitModel from'):
      builders.trained_model(head, model)

  def test_sparsifiers(self):
    def sparsifier(*arguments, num_public=9):
      class data:  # All that is asked of it.
        public = (np.zeros([num_public, 2]), np.zeros(num_public))

      s = _settings(*arguments)
      return s.system.sparsifier(s, data)

    assert sparsifier('--algorithm=fedsmp_released', '--p=0.25') == fedsmp_tff.ReleasedTopK(0.25)
    assert sparsifier('--algorithm=fedsmp_randk', '--p=0.25', '--mask_rounds=3') == (
        fedsmp_tff.RandK(0.25, mask_rounds=3)
    )
    assert sparsifier('--algorithm=dp_fedavg') == fedsmp_tff.Dense()
    assert builders.num_kept(_settings('--p=0.25'), 24) == 6
    assert builders.num_kept(_settings('--algorithm=dp_fedavg'), 24) == 24
    # One training on all public examples, as in the paper, or pseudo-clients.
    assert sparsifier().public_clients is None
    assert sparsifier('--public_clients=3').public_clients == 3
    assert isinstance(sparsifier('--released_weight=0.5'), fedsmp_tff.HybridTopK)
    with pytest.raises(errors.InputError, match='--public_clients=10 exceeds the 9 public examples'):
      sparsifier('--public_clients=10')

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
        _settings('--server_learning_rate_schedule=linear_decay', '--server_learning_rate=8', '--rounds=4')
    )
    state = optimizer.initialize(tf.TensorSpec([]))
    weight, steps = tf.constant(0.0), []
    for _ in range(4):
      state, moved = optimizer.next(state, weight, tf.constant(-1.0))
      steps.append(float(moved - weight))
      weight = moved
    assert steps == pytest.approx([8, 6, 4, 2])


class TestExecution:

  def test_each_option_changes_weights_and_not_epsilon(self, data_dir, tmp_path, capsys):
    common = ['--seed=1', '--p=0.2', '--server_learning_rate=0.01']
    found, epsilons = {}, set()
    options = {flag: said for flag, said in _OPTIONS.items() if 'released' not in flag}
    for name, said in {'--rounds=3': '', **options}.items():
      out = tmp_path / name
      assert commands.main(commands.tiny(data_dir, out, *common, name)) == 0
      printed = ' '.join(capsys.readouterr().out.split())
      assert said in printed and 'learning rate 0.01' in printed
      assert all(other in said or other not in printed for other in _OPTIONS.values())
      found[name] = commands.story(out)[1]
      rows = commands.rows(out / 'metrics.csv')
      epsilons.add(tuple((row['epsilon'], row['epsilon_paper']) for row in rows))
      norms = [float(row['clipping_norm']) for row in rows[1:]]
      falls = [1, 0.99, 0.99**2] if 'clip_schedule' in name else [1, 1, 1]
      assert norms == pytest.approx(falls, rel=1e-6)
    assert len(epsilons) == 1
    assert len(set(found.values())) == len(found)

  @pytest.mark.parametrize('flags', [
      ('--algorithm=fedsmp_released', '--clip_schedule=learning_rate', '--server_learning_rate_schedule=linear_decay'),
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

  def test_validation_examples_are_no_test_examples(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    # 60 examples: 8 public ones, 16 held out, 36 of twelve clients. Unlike the 20 test ones
    # they are 16ths.
    flags = ('--algorithm=fedsmp_topk', '--seed=1', '--validation_examples=16')
    assert commands.main(commands.tiny(data_dir, out, *flags)) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert '16 of them HELD OUT in place of the test set' in printed
    assert '12 clients with 3 to 4 examples each' in printed and 'validation set 16' in printed
    for row in commands.rows(out / 'metrics.csv'):
      assert (16 * float(row['test_accuracy'])) % 1 == 0
