"""Tests of --recipe: files of flags, in the package and as a command line takes them."""

import pathlib

import pytest

from tasks import errors
from tasks.config import grids
from tasks.config import recipes
from tasks.config import settings

_FILES = sorted(
    (pathlib.Path(recipes.__file__).parents[1] / 'experiments' / 'recipes').glob('*/*.flags')
)


def _settings(*arguments):
  return settings.parse(arguments)[0]


class TestComputation:

  def test_a_recipe_that_is_not_there(self):
    with pytest.raises(errors.InputError, match='--recipe=x is not .*fashion_mnist; choose best, paper, scratch or none'):
      recipes.file_of('fashion_mnist', 'x')
    with pytest.raises(errors.InputError, match='--task=emnist; it has none: drop the flag'):
      recipes.file_of('emnist', 'best')

  def test_flags_after_an_algorithm_are_for_it_alone(self):
    lines = ['--a=1', '--algorithm=x', '--b=2', '--c=3', '--algorithm=y', '--b=4']
    assert recipes.of_algorithm(lines, None) == lines[:4]
    assert recipes.of_algorithm(lines, 'x') == lines[:4]
    assert recipes.of_algorithm(lines, 'y') == ['--a=1', '--algorithm=y', '--b=4']
    assert recipes.of_algorithm(lines, 'z') == recipes.of_algorithm(['--a=1'], None) == ['--a=1']

  def test_a_name_is_no_path(self):
    with pytest.raises(errors.InputError, match='is not a recipe'):
      recipes.file_of('fashion_mnist', '../fashion_mnist/best')


class TestExecution:

  def test_there_are_some(self):
    assert any(path.parent.name == 'fashion_mnist' for path in _FILES)

  @pytest.mark.parametrize('path', _FILES, ids=lambda path: f'{path.parent.name}/{path.stem}')
  def test_it_is_the_flags_of_its_file(self, path):
    task, name = f'--task={path.parent.name}', f'--recipe={path.stem}'
    lines = [line for line in path.read_text().splitlines() if line.startswith('--')]
    written_out = recipes.of_algorithm(lines, None)
    assert written_out
    assert _settings(task, name) == _settings(task, *written_out)
    assert _settings(task, name) != _settings(task)

  @pytest.mark.parametrize('path', _FILES, ids=lambda path: f'{path.parent.name}/{path.stem}')
  def test_what_is_given_beside_it_wins(self, path):
    task, name = f'--task={path.parent.name}', f'--recipe={path.stem}'
    for arguments in ((task, name, '--seed=3', '--rounds=7'), ('--rounds=7', '--seed=3', name, task)):
      found = _settings(*arguments)
      assert (found.rounds, found.seed) == (7, 3)
      assert found.clip_schedule == _settings(task, name).clip_schedule

  @pytest.mark.parametrize('row', [
      'table_1/fedsmp_topk/0.005', 'table_1/dp_fedavg', 'table_2/fedsmp_randk/0.4', 'table_3/fedavg',
      'table_3/fedsmp_topk/0.05',
  ])
  def test_that_of_the_paper_is_the_setting_of_its_tables(self, row):
    expected = _settings(f'--row={row}')
    found = _settings(
        f'--task={expected.task}', '--recipe=paper', f'--algorithm={expected.algorithm}',
        *([f'--p={expected.p}'] if expected.p is not None else []),
        # 0.3 as the paper prints it; the table's own epsilon needs 0.316.
        *(['--noise_multiplier=0.316'] if expected.noise_multiplier == 0.316 else []),
    )
    assert found == expected

  @pytest.mark.parametrize('recipe, explicit, name, left_out', [
      ('best', '--noise_multiplier=2', 'noise_multiplier', 'epsilon'),
      ('scratch', '--clip_quantile=0.5', 'clip_quantile', 'clip_schedule'),
  ])
  def test_what_is_given_takes_the_place_of_what_it_excludes(self, recipe, explicit, name, left_out):
    of_recipe = ('--task=fashion_mnist', f'--recipe={recipe}')
    found = _settings(*of_recipe, explicit)
    assert getattr(found, name) is not None and getattr(found, left_out) is None
    whole = _settings(*of_recipe, f'--algorithm={found.algorithm}')
    assert getattr(whole, left_out) is not None
    assert found.server_learning_rate == whole.server_learning_rate != 1
    with pytest.raises(errors.InputError, match='exclude each other'):
      _settings(*of_recipe, '--epsilon=1', '--noise_multiplier=2')

  @pytest.mark.parametrize('task', ['fashion_mnist', 'shakespeare'])
  def test_the_best_is_for_the_clients_in_the_data_and_every_system(self, task):
    for algorithm in settings.ALGORITHMS:
      if not settings.ALGORITHMS[algorithm].federated:
        continue
      found = _settings(f'--task={task}', '--recipe=best', f'--algorithm={algorithm}')
      assert found.algorithm == algorithm
      private = algorithm.startswith(('fedsmp', 'dp'))
      assert found.warm_start == 'public' and found.sampling == ('poisson' if private else 'fixed')
      assert (found.epsilon is not None) == private == (found.clip is not None)
      same = _settings(f'--task={task}', '--recipe=best', '--algorithm=fedsmp_topk')
      assert found.rounds == same.rounds
      # Of the last layer alone noise is small: on Fashion-MNIST a larger cohort learns faster.
      is_larger = task == 'fashion_mnist' and algorithm.endswith('_head')
      assert found.clients_per_round == (300 if is_larger else same.clients_per_round) >= 100

  def test_other_systems_have_what_equal_care_chose_for_them(self):
    for algorithm, clip, rate in (
        ('fedsmp_head', 0.1, 30), ('fedavg_head', None, 30), ('fedsmp_released', 0.4, 2), ('fedsmp_randk', 1, 2), ('dp_fedavg', 0.4, 2), ('fedavg', None, 3),
    ):
      found = _settings('--task=fashion_mnist', '--recipe=best', f'--algorithm={algorithm}')
      assert (found.clip, found.server_learning_rate) == (clip, rate)
      typed = next(
          cell.settings for paragraph in grids.read('worth/fashion_mnist') for cell in paragraph
          if cell.settings.algorithm == algorithm
      )
      for name in (
          'p', 'clip', 'epsilon', 'server_learning_rate', 'rounds', 'whiten', 'clients_per_round',
          'local_epochs', 'learning_rate', 'public_examples', 'server_schedule',
      ):
        assert getattr(typed, name) == getattr(found, name), name

  def test_a_flag_about_coordinates_is_for_a_system_that_chooses_them(self):
    of_recipe = ('--task=fashion_mnist', '--recipe=best')
    assert _settings(*of_recipe).algorithm == 'fedsmp_head'
    assert _settings(*of_recipe, '--clip=0.2').algorithm == 'fedsmp_head'
    for flag in ('--p=0.01', '--released_weight=0.5', '--mask_rounds=2'):
      found = _settings(*of_recipe, flag)
      assert (found.algorithm, found.whiten, found.clip) == ('fedsmp_topk', None, 0.4)
      name, _, value = flag.lstrip('-').partition('=')
      assert getattr(found, name) == float(value)
    with pytest.raises(errors.InputError, match='--p has no effect.*fedsmp_head|--p .*algorithm'):
      _settings(*of_recipe, '--algorithm=fedsmp_head', '--p=0.01')

  def test_the_time_is_that_of_its_file(self):
    assert recipes.time_of('shakespeare', 'best').endswith('minutes on two processors')
    assert recipes.time_of('shakespeare', 'scratch') is None

  def test_the_default_of_a_run(self):
    def of_run(*arguments):
      return settings.parse(arguments, default_recipe='best')[0]

    best = _settings('--task=shakespeare', '--recipe=best')
    assert of_run('--task=shakespeare') == best and of_run('--task=shakespeare').recipe == 'best'
    explicit = of_run('--task=shakespeare', '--p=0.05')
    assert (explicit.p, explicit.epsilon, explicit.recipe) == (0.05, best.epsilon, 'best')
    plain = _settings('--task=shakespeare')
    assert plain != best and plain.recipe is None
    # Another preset, a task without recipes, and no rounds: the default takes no place.
    for name in ('none', 'paper', 'scratch'):
      found = of_run('--task=shakespeare', f'--recipe={name}')
      assert found == _settings('--task=shakespeare', f'--recipe={name}')
      assert found.recipe == (None if name == 'none' else name)
    row = '--row=table_1/fedsmp_topk/0.005'
    assert of_run(row) == _settings(row)
    assert of_run('--task=emnist') == _settings('--task=emnist')
    alone = ('--task=shakespeare', '--algorithm=public_only')
    assert of_run(*alone) == _settings(*alone) and of_run(*alone, '--recipe=none').recipe is None
    assert 'recipe' not in settings.identity(best)

  def test_so_it_does_of_a_row(self):
    found = _settings('--row=table_5/fedsmp_topk/0.005/0.58', '--epsilon=2')
    assert found.epsilon == 2 and found.noise_multiplier is None
