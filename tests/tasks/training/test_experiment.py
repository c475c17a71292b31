"""Tests of what follows from flags in a run: mask, schedules, guarantee, plan and resuming."""

import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tasks import datasets
from tasks import errors
from tasks.datasets import task as task_lib
from tasks.training import experiment
from tasks.training import plan
from tasks.training import settings
from tests.support import commands
from tests.support import tiny_models
from tests.support import tiny_task

# Flags that change the weights and not epsilon, and their words in the plan.
_FREE = {
    '--server_learning_rate_schedule=linear_decay': ', linear decay to zero',
    '--max_client_examples=2': '; at most 2 examples per client, drawn anew in each round',
}


def _settings(*arguments, task='fashion_mnist'):
  return settings.parse([f'--task={task}', *arguments])[0]


def _owners(*ids):
  return task_lib.Owners('some', frozenset(ids))


@pytest.fixture
def built(monkeypatch):
  """Returns a function that builds the run of two clients, with given owners of the other data."""
  def build(*flags, sigma=None, has_public=True, label=0, label_type=np.int32, **owners):
    examples = np.zeros([4, 28, 28, 1], np.uint8), np.zeros(4, np.int32)
    client = examples[0], np.full(4, label, label_type)
    data = task_lib.TaskData(
        (examples, client), examples, examples if has_public else None, 'made up',
        ('ann', 'bob'), **owners
    )
    task = dataclasses.replace(
        tiny_task.TASK, load=lambda *unused: data, show=lambda model, test: 'a sample'
    )
    monkeypatch.setitem(datasets.TASKS, task.name, task)
    algorithm = () if not has_public else ('--algorithm=dp_fedavg',)
    s = _settings('--clients_per_round=1', *algorithm, *flags, task=task.name)
    return experiment.Experiment.build(s, experiment.make_seeds(1, None), sigma=sigma)

  return build


class TestComputation:

  def test_a_head_needs_a_known_last_layer(self):
    model = tiny_models.linear_regression()
    assert experiment._trained_model(_settings('--trainable=all'), model) is model
    head = _settings('--algorithm=dp_fedavg', '--warm_start=public', '--trainable=head')
    with pytest.raises(errors.InputError, match='Return a tasks.models.split.SplitModel from'):
      experiment._trained_model(head, model)

  def test_each_algorithm_builds_its_sparsifier(self):
    def sparsifier(*arguments):
      class data:  # The public set is all that it needs.
        public = (np.zeros([9, 2]), np.zeros(9))

      s = _settings(*arguments)
      return s.method.sparsifier(s, data)

    assert sparsifier('--algorithm=fedsmp_released', '--p=0.25') == fedsmp_tff.ReleasedTopK(0.25)
    assert sparsifier('--algorithm=fedsmp_randk', '--p=0.25', '--mask_rounds=3') == (
        fedsmp_tff.RandK(0.25, mask_rounds=3)
    )
    assert sparsifier('--algorithm=fedavg_randk', '--p=0.25', '--unbiased=false') == (
        fedsmp_tff.RandK(0.25, unbiased=False)
    )
    assert sparsifier('--algorithm=dp_fedavg') == fedsmp_tff.Dense()
    # One training on all public examples, as in the paper, or pseudo-clients.
    assert sparsifier().public_clients is None
    assert sparsifier('--public_clients=3').public_clients == 3

  def test_public_examples_of_a_client_are_refused(self, built):
    with pytest.raises(errors.InputError, match='1 clients also have public examples'):
      built(public_owners=_owners('bob', 'cid'))
    built(public_owners=_owners('cid'))
    built(public_owners=_owners())

  def test_data_that_do_not_fit_the_model_are_refused(self, built):
    with pytest.raises(errors.InputError, match="--task=tiny: client 'bob' has labels of int64"):
      built(label_type=np.int64)
    built(label=9)
    with pytest.raises(errors.InputError, match="client 'bob' has wrong labels: label 10 is not one of 0 to 9"):
      built(label=10)

  def test_non_class_labels_are_refused_before_data_load(
      self, built, monkeypatch
  ):
    built()
    task = datasets.TASKS['tiny']
    regression = tiny_models.linear_regression()
    task = dataclasses.replace(task, build_model=lambda *unused: regression, load=None)
    monkeypatch.setitem(datasets.TASKS, task.name, task)
    s = _settings('--algorithm=dp_fedavg', task=task.name)
    with pytest.raises(errors.InputError, match='labels must be classes'):
      experiment.Experiment.build(s, experiment.make_seeds(1, None))

  def test_missing_public_examples_are_refused(self, built):
    with pytest.raises(errors.InputError, match='--task=tiny has no public examples. Return'):
      built(has_public=False)

  def test_a_resumed_run_keeps_its_sigma(self, built):
    began = built('--epsilon=2', sigma=9.25)
    assert began.spec.noise_multiplier == 9.25 == began.aggregator.mechanism.noise_multiplier
    assert built('--epsilon=2').spec.epsilon() == pytest.approx(2, rel=1e-4)

  def test_a_run_without_noise_has_no_guarantee(self, built):
    made = built('--noise_multiplier=0')
    assert made.guarantee_status == 'no guarantee without noise'
    assert plan.spent_text(made, 1).endswith(': NO GUARANTEE WITHOUT NOISE')

  @pytest.mark.parametrize('seed', [None, 0, 1])
  def test_only_a_run_without_a_seed_is_valid(self, seed, built):
    made = built(*([] if seed is None else [f'--seed={seed}']))
    assert made.guarantee_status == ('valid' if seed is None else 'simulated')
    for verbose in (False, True):
      assert ('SIMULATION' in plan.text(made, 0, verbose)) == (seed is not None)
    client = made.client_data()(0)
    assert isinstance(client, dict) == (seed is not None)
    assert len(client if seed is None else client['examples']) == 4
    # Without a seed a run that resumes has the recorded public seeds, and fresh secrets.
    recorded = {'seeds': dict(partition=2, weights=3, evaluation=4)}
    seeds = experiment.make_seeds(seed, recorded)
    if seed is None:
      assert seeds == (2, 3, 4, None, None)
    else:
      assert seeds == experiment.make_seeds(seed, None) and len({*seeds, None}) == 6

  @pytest.mark.parametrize('num', [0, 3, 4, 9])
  def test_size_of_test_set_shows_only_without_clients(self, num, built):
    made = [built(f'--eval_examples={num}', test_owners=_owners(name)) for name in ('bob', 'cid')]
    # The test set has four examples.
    assert [m.eval_examples for m in made] == [num or None, num if num == 3 else None]

  @pytest.mark.parametrize('flags', [(), ('--noise=discrete_gaussian', '--clip_quantile=0.5')])
  def test_epsilon_is_reached(self, flags, built):
    # Noise in reals is as good for any k; with integers the vote on C is one more value.
    made = built('--epsilon=3', '--delta=1e-3', *flags)
    assert made.epsilons(made.settings.rounds)['epsilon'] == pytest.approx(3, abs=1e-3)
    assert made.spec.noise.num_values == (made.round.num_kept + 1 if flags else None)

  def test_only_results_on_non_clients_are_shown(self, built):
    for owners, shown in ((_owners('cid'), 'a sample'), (_owners('bob', 'cid'), None), (None, None)):
      made = built(test_owners=owners)
      weights = tff.learning.models.ModelWeights(*made.model.initial_weights)
      assert made.show(weights) == shown

  @pytest.mark.parametrize('flags, known, depends', [
      (['--warm_start=public'], False, True), (['--warm_start=public'], True, False),
      (['--warm_start=none'], False, False),
      # The public set chooses the masks alone.
      (['--warm_start=none', '--algorithm=fedsmp_topk'], False, True),
  ])
  def test_every_plan_says_what_the_guarantee_depends_on(self, flags, known, depends, built):
    made = built(*flags, public_owners=_owners('cid') if known else None)
    for verbose in (False, True):
      text = plan.text(made, 0, verbose)
      assert ('epsilon holds if no client has an example of the public set' in text) == depends
      words = ' '.join(text.split())
      assert words.count('; see docs/privacy.md') == 1
      assert (', 1 owner of test and public examples' in words) == known
      assert (len(text.splitlines()) > 15) == verbose

  @pytest.mark.parametrize('task, rounds', [('fashion_mnist', 1), ('shakespeare', 50)])
  def test_learning_rate_decays_with_the_rounds(self, task, rounds):
    settings = _settings(task=task)
    for round_num, decays in ((0, 0), (rounds - 1, 0), (rounds, 1), (4 * rounds - 1, 3)):
      factor = experiment._decay(settings, tf.constant(round_num))
      assert float(factor) == pytest.approx(0.99**decays, rel=1e-6)

  @pytest.mark.parametrize('schedule, expected', [
      ('linear_decay', [8, 6, 4, 2]), ('constant', [8, 8, 8, 8]),
  ])
  def test_server_learning_rate_follows_the_schedule(self, schedule, expected):
    optimizer = experiment._server_optimizer(_settings(
        f'--server_learning_rate_schedule={schedule}', '--server_learning_rate=8', '--rounds=4'
    ))
    state = optimizer.initialize(tf.TensorSpec([]))
    weight, steps = tf.constant(0.0), []
    for _ in range(4):
      state, updated = optimizer.next(state, weight, tf.constant(-1.0))
      steps.append(float(updated - weight))
      weight = updated
    assert steps == pytest.approx(expected)


class TestExecution:

  def test_flags_without_a_cost_change_weights_and_not_epsilon(self, data_dir, tmp_path, capsys):
    stories, epsilons = set(), set()
    for flag in ('--rounds=3', *_FREE):
      out = tmp_path / flag
      common = ('--seed=1', '--p=0.2', '--server_learning_rate=0.01', '--verbose', flag)
      assert commands.main(commands.tiny(data_dir, out, *common)) == 0
      printed = ' '.join(capsys.readouterr().out.split())
      assert 'learning rate 0.01' in printed
      assert [words in printed for words in _FREE.values()] == [f == flag for f in _FREE]
      stories.add(commands.story(out)[1])
      rows = commands.rows(out / 'metrics.csv')
      epsilons.add(tuple((row['epsilon'], row['epsilon_paper']) for row in rows))
      assert [float(row['clipping_norm']) for row in rows[1:]] == [1, 1, 1]
    assert len(epsilons) == 1 and len(stories) == 1 + len(_FREE)

  def test_a_non_finite_public_update_ends_the_run(
      self, data_dir, tmp_path, capsys
  ):
    flags = ('--algorithm=fedsmp_topk', '--learning_rate=1e30', '--local_epochs=4', '--seed=1')
    assert commands.main(commands.tiny(data_dir, tmp_path / 'out', *flags)) == 1
    assert 'tasks.run: The update on public data is not finite' in capsys.readouterr().err

  @pytest.mark.slow
  @pytest.mark.parametrize('flags', [
      ('--algorithm=fedsmp_released', *_FREE),
      ('--algorithm=fedsmp_topk', '--clip_quantile=0.5', '--mask_rounds=2'),
  ])
  def test_an_interrupted_run_keeps_its_memory(
      self, flags, data_dir, tmp_path, capsys, checkpoint_each_round
  ):
    # All that has a memory: without it in the checkpoint, the story would be another.
    flags = [*flags, '--seed=1', '--rounds=5']
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    assert commands.main(commands.tiny(data_dir, whole, *flags)) == 0
    # As if it had ended after the third round: the rows of two more were not yet checkpointed.
    shutil.copytree(
        whole, parts, ignore=shutil.ignore_patterns('round_[45].npz', 'summary.json', 'weights*')
    )
    assert commands.main(commands.tiny(data_dir, parts, *flags)) == 0
    assert 'resuming after round 3 of 5' in capsys.readouterr().out
    assert commands.story(parts) == commands.story(whole)
