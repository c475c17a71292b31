"""Tests that grids and files of flags have names in every directory."""

import os
import pathlib

import pytest

from tasks.cli import experiment_files
from tasks.experiments import grids
from tasks.training import settings

_BUILT_IN = pathlib.Path(settings.__file__).parents[1] / 'experiments/paper/svhn.flags'


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
  """A working directory that is not a clone's root, and a home directory."""
  (tmp_path / 'home').mkdir()
  monkeypatch.setenv('HOME', str(tmp_path / 'home'))
  monkeypatch.chdir(tmp_path)


def _parse(text):
  return settings.parse([f'--flagfile={text}'])[0]


@pytest.mark.parametrize(
    'text', ['paper/svhn', 'paper/svhn.flags', 'tasks/experiments/paper/svhn.flags']
)
def test_built_in_flag_files_are_found_by_name(text, tmp_path):
  expected = _parse(_BUILT_IN)
  assert expected.task == 'svhn' and _parse(text) == expected
  assert settings.parse(['--flagfile', text])[0] == expected
  (tmp_path / 'nested').write_text(f'--flagfile={text}\n--seed=3\n')
  assert _parse('nested').seed == 3 and _parse('nested').task == 'svhn'
  (tmp_path / 'my.grid').write_text(f'--flagfile={text}\n')
  [[cell]] = grids.read('my.grid')
  assert cell.flags == (f'--flagfile={_BUILT_IN}',)
  # A file of the user's comes first.
  (tmp_path / text).parent.mkdir(parents=True)
  (tmp_path / text).write_text('--task=emnist\n')
  assert _parse(text).task == 'emnist'


def test_built_in_grids_are_found_by_name():
  built_in = grids.read('paper/svhn')
  assert built_in == grids.read('tasks/experiments/paper/svhn.grid') == grids.read('paper/svhn.grid')


def test_a_tilde_is_the_home_directory(tmp_path):
  (tmp_path / 'home' / 'my.flags').write_text('--task=emnist\n--output_dir=~/runs\n')
  (tmp_path / 'home' / 'my.grid').write_text('--flagfile=~/my.flags\n')
  _, runtime_flags = settings.parse(['--flagfile=~/my.flags', '--data_dir=~/data'])
  home = os.environ['HOME']
  assert (runtime_flags.output_dir, runtime_flags.data_dir) == (f'{home}/runs', f'{home}/data')
  [[cell]] = grids.read('~/my.grid')
  assert cell.flags == (f'--flagfile={home}/my.flags',)


def test_names_of_other_files_of_the_package_are_not_found():
  for text in ('grids.py', 'paper/tables.csv', '../training/settings', '/paper/svhn'):
    assert experiment_files.locate(text, experiment_files.FLAGS) == pathlib.Path(text)
