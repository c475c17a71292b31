"""Tests that the wheel is the library alone, and that its copy runs outside the repository."""

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

_ROOT = pathlib.Path(__file__).parents[2]
_PROJECT = tomllib.loads((_ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
_INFO = f'fedsmp_tff-{fedsmp_tff.__version__}.dist-info'


def _pins(path):
  """The requirements in a file of them, without comments."""
  lines = (_ROOT / path).read_text(encoding='utf-8').splitlines()
  return sorted(line.strip() for line in lines if re.match(r'[a-z]', line))


def _run(*command, cwd, **environment):
  done = subprocess.run(
      command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True,
      check=False,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


def _pip(*arguments, cwd):
  # CI may be offline: whatever pip needs is in the environment already. The lock's `packaging`
  # does not know licence expressions (tensorflow-privacy caps it); setuptools has its own.
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
  (found,) = built.glob('*.whl')
  return found


def test_it_has_the_library_alone(wheel):
  with zipfile.ZipFile(wheel) as file:
    names = set(file.namelist())
  library = {
      str(path.relative_to(_ROOT)) for path in (_ROOT / 'fedsmp_tff').rglob('*.py')
  } | {'fedsmp_tff/py.typed'}
  assert {name for name in names if name.startswith('fedsmp_tff/')} == library
  assert names - library == {
      f'{_INFO}/{name}'
      for name in ('METADATA', 'RECORD', 'WHEEL', 'top_level.txt', 'licenses/LICENSE')
  }


def test_its_metadata(wheel):
  with zipfile.ZipFile(wheel) as file:
    metadata = file.read(f'{_INFO}/METADATA').decode()
  assert f'\nVersion: {fedsmp_tff.__version__}\n' in metadata
  assert '\nLicense-Expression: Apache-2.0\n' in metadata
  assert set(re.findall(r'^Provides-Extra: (.*)$', metadata, re.MULTILINE)) == {'ray', 'tff'}
  required = re.findall(r'^Requires-Dist: ([^;\n]*)$', metadata, re.MULTILINE)
  assert required == ['dp-accounting>=0.6', 'numpy', 'scipy']


def test_its_extras_and_overrides_are_those_of_the_lock():
  assert sorted(_PROJECT['tool']['uv']['override-dependencies']) == _pins('overrides.txt')
  extras = _PROJECT['project']['optional-dependencies']
  pins = {line.partition(';')[0] for lines in extras.values() for line in lines}
  assert pins <= set(_pins('requirements.txt'))


def test_an_installed_copy_runs_the_readmes_example(wheel, tmp_path):
  site, elsewhere = tmp_path / 'site', tmp_path / 'elsewhere'
  elsewhere.mkdir()
  _pip('install', '--target', str(site), str(wheel), cwd=elsewhere)
  readme = (_ROOT / 'README.md').read_text(encoding='utf-8')
  example = re.search(r'```python\n(.*?)```', readme, re.DOTALL)[1]
  (elsewhere / 'example.py').write_text(
      f'{example}\nprint(fedsmp_tff.__file__)\n'
      "print(output.metrics['aggregator']['participants'])\n"
  )
  printed = _run(
      sys.executable, 'example.py', cwd=elsewhere, PYTHONPATH=str(site)
  ).splitlines()
  assert printed[-2:] == [str(site / 'fedsmp_tff' / '__init__.py'), '26']
