"""Tests of --recipe: files of flags, in the package and as a command line takes them."""

import pathlib

import pytest

from tasks import errors
from tasks.config import recipes
from tasks.config import settings

_FILES = sorted(
    (pathlib.Path(recipes.__file__).parents[1] / 'experiments' / 'recipes').glob('*/*.flags')
)


def _settings(*arguments):
  return settings.parse(arguments)[0]


class TestComputation:

  def test_a_recipe_that_is_not_there(self):
    with pytest.raises(errors.InputError, match='--recipe=x is not .*fashion_mnist; choose best'):
      recipes.file_of('fashion_mnist', 'x')
    with pytest.raises(errors.InputError, match='--task=svhn; it has none: drop the flag'):
      recipes.file_of('svhn', 'best')

  def test_a_name_is_no_path(self):
    with pytest.raises(errors.InputError, match='is not a recipe'):
      recipes.file_of('fashion_mnist', '../fashion_mnist/best')


class TestExecution:

  def test_there_are_some(self):
    assert any(path.parent.name == 'fashion_mnist' for path in _FILES)

  @pytest.mark.parametrize('path', _FILES, ids=lambda path: f'{path.parent.name}/{path.stem}')
  def test_it_is_the_flags_of_its_file(self, path):
    task, name = f'--task={path.parent.name}', f'--recipe={path.stem}'
    written_out = [
        line for line in path.read_text().splitlines() if line.startswith('--')
    ]
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

  @pytest.mark.parametrize('explicit, name, left_out', [
      ('--k=100', 'k', 'p'), ('--public_epochs=2', 'public_epochs', 'public_steps'),
  ])
  def test_what_is_given_takes_the_place_of_what_it_excludes(self, explicit, name, left_out):
    found = _settings('--task=shakespeare', '--recipe=best', explicit)
    assert getattr(found, name) is not None and getattr(found, left_out) is None
    whole = _settings('--task=shakespeare', '--recipe=best')
    assert found.released_weight == whole.released_weight
    with pytest.raises(errors.InputError, match='exclude each other'):
      _settings('--task=shakespeare', '--recipe=best', '--p=0.1', '--k=100')

  def test_so_it_does_of_a_row(self):
    for explicit, name, left_out in (
        ('--k=100', 'k', 'p'), ('--epsilon=2', 'epsilon', 'noise_multiplier'),
    ):
      found = _settings('--row=table_5/fedsmp_topk/0.005/0.58', explicit)
      assert getattr(found, name) is not None and getattr(found, left_out) is None
