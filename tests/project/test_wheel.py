"""Tests that the wheel is the library and the commands, and runs outside the repository."""

import functools
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

import fedsmp_tff

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).parents[2]
_PROJECT = tomllib.loads((_ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
_INFO = f'fedsmp_tff-{fedsmp_tff.__version__}.dist-info'


def _pins(path):
  """Returns the requirements of a file, without comments."""
  lines = (_ROOT / path).read_text(encoding='utf-8').splitlines()
  return sorted(line.strip() for line in lines if re.match(r'[a-z]', line))


def _run(*command, cwd, **environment):
  return subprocess.run(
      command, cwd=cwd, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True,
      check=True,
  ).stdout


def _pip(*arguments, cwd):
  # CI may be offline. The lock's `packaging` does not know licence expressions (tensorflow-privacy
  # caps it); setuptools has its own.
  vendored = pathlib.Path(importlib.util.find_spec('setuptools').origin).parent / '_vendor'
  return _run(
      sys.executable, '-m', 'pip', *arguments, '--no-index', '--no-deps', '--quiet',
      '--disable-pip-version-check', cwd=cwd, PYTHONPATH=str(vendored),
  )


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  """The wheel of a copy of this tree, in which a run has left its folder."""
  tree = tmp_path_factory.mktemp('tree')
  listed = _run('git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard', cwd=_ROOT)
  for name in listed.split('\0'):
    if (_ROOT / name).is_file() and not name.startswith('docs/'):
      (tree / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(_ROOT / name, tree / name)
  (tree / 'runs' / 'x').mkdir(parents=True)
  (tree / 'runs' / 'x' / 'config.json').write_text('{}')
  built = tmp_path_factory.mktemp('wheel')
  _pip('wheel', '--no-build-isolation', '--wheel-dir', str(built), str(tree), cwd=built)
  (path,) = built.glob('*.whl')
  return path


def test_wheel_has_library_commands_and_data(wheel):
  with zipfile.ZipFile(wheel) as file:
    names = set(file.namelist())
    metadata = file.read(f'{_INFO}/METADATA').decode()
  paths = [
      path for package in ('fedsmp_tff', 'tasks') for path in (_ROOT / package).rglob('*')
      if path.is_file() and path.suffix != '.pyc'
  ]
  assert {path.suffix for path in paths} >= {'.grid', '.flags', '.csv', '.typed'}
  assert names == {str(path.relative_to(_ROOT)) for path in paths} | {
      f'{_INFO}/{name}'
      for name in ('METADATA', 'RECORD', 'WHEEL', 'top_level.txt', 'licenses/LICENSE')
  }
  assert f'\nVersion: {fedsmp_tff.__version__}\n' in metadata
  assert '\nLicense-Expression: Apache-2.0\n' in metadata
  assert set(re.findall(r'^Provides-Extra: (.*)$', metadata, re.M)) == {'ray', 'tasks', 'tff'}
  required = re.findall(r'^Requires-Dist: ([^;\n]*)$', metadata, re.M)
  assert required == ['dp-accounting>=0.6', 'numpy', 'pld-accounting==2.0', 'scipy']


def test_extras_and_overrides_match_the_lock():
  assert sorted(_PROJECT['tool']['uv']['override-dependencies']) == _pins('overrides.txt')
  extras = _PROJECT['project']['optional-dependencies']
  needs = {line.partition(';')[0] for lines in extras.values() for line in lines}
  assert {need for need in needs if '==' in need} <= set(_pins('requirements.txt'))
  assert {need.partition('==')[0] for need in needs} <= {
      re.match('[a-z0-9-]+', pin)[0] for pin in _pins('requirements.in')
  }


def test_installed_wheel_runs_commands_and_readme_example(wheel, tmp_path):
  site = tmp_path / 'site'
  _pip('install', '--target', str(site), str(wheel), cwd=tmp_path)
  run = functools.partial(_run, sys.executable, cwd=tmp_path, PYTHONPATH=str(site))
  assert run('-m', 'tasks.run', '--help').startswith('usage: python -m tasks.run')
  # Files of flags and grids have the names that they have in a clone.
  grid = run('-m', 'tasks.sweep', '--grid=tasks/experiments/paper/svhn.grid', '--seeds=1', '--print')
  assert f'--flagfile={site}/tasks/experiments/paper/svhn.flags ' in grid
  program = 'import sys; from tasks.training import settings; print(settings.parse(sys.argv[1:])[0].task)'
  for name in ('paper/svhn', 'tasks/experiments/paper/svhn.flags'):
    assert run('-c', program, f'--flagfile={name}') == 'svhn\n'
  readme = (_ROOT / 'README.md').read_text(encoding='utf-8')
  example = re.search(r'```python\n(.*?)```', readme, re.DOTALL)[1]
  (tmp_path / 'example.py').write_text(
      f"{example}\nprint(fedsmp_tff.__file__, output.metrics['aggregator']['participants'])\n"
  )
  assert run('example.py').splitlines()[-1] == f'{site}/fedsmp_tff/__init__.py 26'
