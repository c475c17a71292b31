"""Tests which package may import which, how large a file may be, and that BUILD has every file."""

import ast
import collections
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
# What no file of a package imports.
_NEVER = {
    'fedsmp_tff': ('absl', 'tasks', 'tests'),
    'fedsmp_tff/mechanism': ('fedsmp_tff.privacy', 'fedsmp_tff.program', 'fedsmp_tff.runtime'),
    'fedsmp_tff/privacy': ('fedsmp_tff.program', 'fedsmp_tff.runtime', 'tensorflow'),
    'fedsmp_tff/runtime': (
        'fedsmp_tff.mechanism', 'fedsmp_tff.privacy', 'fedsmp_tff.program',
    ),
    'tasks': ('tests',),
    'tasks/models': ('tasks.cli', 'tasks.datasets', 'tasks.reporting', 'tasks.training'),
    'tasks/datasets': ('tasks.reporting', 'tasks.training'),
    'tasks/systems': ('tasks.reporting', 'tasks.training'),
}
_MAX_MODULES, _MAX_LINES, _MAX_CODE = 12, 350, 60


def _imports(path):
  for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


@pytest.mark.parametrize('package', _NEVER)
def test_no_file_imports_from_above(package):
  paths = sorted((_ROOT / package).rglob('*.py'))
  assert paths
  found = [
      f'{path.relative_to(_ROOT)} imports {name}'
      for path in paths
      for name in _imports(path)
      if any(name == never or name.startswith(f'{never}.') for never in _NEVER[package])
  ]
  assert not found


def _lines_of_code(function, lines):
  """The number of lines of a function, without blank ones, comments and docstrings."""
  kinds = (ast.ClassDef, ast.FunctionDef)
  docstrings = [
      node.body[0] for node in ast.walk(function)
      if isinstance(node, kinds) and ast.get_docstring(node) is not None
  ]
  left_out = {n for doc in docstrings for n in range(doc.lineno, doc.end_lineno + 1)}
  return sum(
      bool(lines[number - 1].split('#')[0].strip())
      for number in range(function.lineno, function.end_lineno + 1) if number not in left_out
  )


@pytest.mark.parametrize('package', ['fedsmp_tff', 'tasks'])
def test_folders_files_and_functions_are_small(package):
  found, modules = [], collections.Counter()
  for path in sorted((_ROOT / package).rglob('*.py')):
    name, text = path.relative_to(_ROOT), path.read_text(encoding='utf-8')
    modules[name.parent] += path.name != '__init__.py'
    lines = text.splitlines()
    if len(lines) > _MAX_LINES:
      found.append(f'{name} has {len(lines)} lines')
    for node in ast.walk(ast.parse(text)):
      if isinstance(node, ast.FunctionDef) and (num := _lines_of_code(node, lines)) > _MAX_CODE:
        found.append(f'{name}: {node.name} has {num} lines of code')
  found += [f'{name} has {num} modules' for name, num in modules.items() if num > _MAX_MODULES]
  assert not found


def test_build_has_every_file():
  sources, tests, commands = set(), set(), set()

  def glob(include, exclude=()):
    paths = {p for pattern in include for p in _ROOT.glob(pattern)}
    paths -= {p for pattern in exclude for p in _ROOT.glob(pattern)}
    assert paths
    # Starlark is nearly Python; what no build sees, such as .venv, is not of the package.
    return sorted(str(p.relative_to(_ROOT)) for p in paths if '.venv' not in p.parts)

  def ignore(*unused_arguments, **unused_keywords):
    pass

  exec(  # pylint: disable=exec-used
      (_ROOT / 'BUILD').read_text(encoding='utf-8'),
      {
          **dict.fromkeys(('load', 'package', 'licenses', 'exports_files'), ignore),
          'glob': glob,
          'py_library': lambda srcs, **_: sources.update(srcs),
          'py_binary': lambda srcs, **_: commands.update(srcs),
          'py_test': lambda srcs, **_: tests.update(srcs),
      },
  )
  files = {
      str(p.relative_to(_ROOT))
      for top in ('fedsmp_tff', 'tasks', 'tests') for p in (_ROOT / top).rglob('*.py')
  }
  assert files <= sources | tests
  runnable = {f for f in files if '__main__' in (_ROOT / f).read_text(encoding='utf-8')}
  assert commands == {f for f in runnable if f.startswith('tasks/')}
