"""Tests that each module of the library has a file of tests under its name, and the reverse."""

import pathlib

_ROOT = pathlib.Path(__file__).parents[2]
# Modules that are tested elsewhere, and where.
_ELSEWHERE = {
    '_platform.py': 'tests/project/test_platform.py',
    # It runs inside Ray's processes only.
    'runtime/ray_worker.py': 'tests/fedsmp_tff/runtime/test_ray_cluster.py',
}


def _files(folder, prefix=''):
  paths = (_ROOT / folder).rglob(f'{prefix}*.py')
  return {str(p.relative_to(_ROOT / folder)) for p in paths if p.name != '__init__.py'}


def test_a_file_of_tests_for_each_module_and_no_other():
  mirrored = {
      str(pathlib.Path(module).with_name('test_' + pathlib.Path(module).name))
      for module in _files('fedsmp_tff') - {*_ELSEWHERE}
  }
  assert mirrored == _files('tests/fedsmp_tff', 'test_')


def test_modules_tested_elsewhere_are():
  assert {*_ELSEWHERE} <= _files('fedsmp_tff')
  assert all((_ROOT / path).is_file() for path in _ELSEWHERE.values())
