"""Tests which package may import which, how large a file may be, and that BUILD has every file."""

import ast
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
# Modules that no file of a package may import.
_NEVER = {
    'fedsmp_tff': ('absl', 'tasks', 'tests'),
    'fedsmp_tff/mechanism': ('fedsmp_tff.privacy', 'fedsmp_tff.program', 'fedsmp_tff.runtime'),
    'fedsmp_tff/privacy': ('fedsmp_tff.program', 'fedsmp_tff.runtime', 'tensorflow'),
    'fedsmp_tff/runtime': ('fedsmp_tff.mechanism', 'fedsmp_tff.privacy', 'fedsmp_tff.program'),
    'tasks': ('tests',),
    'tasks/cli': tuple(
        f'tasks.{name}' for name in ('datasets', 'experiments', 'methods', 'reporting', 'training')
    ),
    'tasks/models': ('tasks.cli', 'tasks.datasets', 'tasks.reporting', 'tasks.training'),
    'tasks/datasets': ('tasks.methods', 'tasks.reporting', 'tasks.training'),
    'tasks/methods': ('tasks.experiments', 'tasks.reporting', 'tasks.training'),
    'tasks/training': ('tasks.experiments', 'tasks.reporting'),
    'tasks/experiments': ('tasks.reporting',),
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
  imports = [
      (path, name) for path in (_ROOT / package).rglob('*.py') for name in _imports(path)
  ]
  below = tuple(f'{never}.' for never in _NEVER[package])
  assert imports and not [(path, name) for path, name in imports if f'{name}.'.startswith(below)]


def _lines_of_code(function, lines):
  """Returns the number of lines of a function, without blank ones, comments and docstrings."""
  numbers = set(range(function.lineno, function.end_lineno + 1))
  for node in ast.walk(function):
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
      numbers -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
  return sum(bool(lines[number - 1].split('#')[0].strip()) for number in numbers)


@pytest.mark.parametrize('package', ['fedsmp_tff', 'tasks'])
def test_folders_files_and_functions_are_small(package):
  sizes = []
  for path in sorted((_ROOT / package).rglob('*.py')):
    name, text = path.relative_to(_ROOT), path.read_text(encoding='utf-8')
    modules = len(set(path.parent.glob('*.py')) - {path.parent / '__init__.py'})
    sizes += [(name.parent, modules, _MAX_MODULES), (name, len(text.splitlines()), _MAX_LINES)]
    sizes += [
        (f'{name}: {node.name}', _lines_of_code(node, text.splitlines()), _MAX_CODE)
        for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)
    ]
  assert not [size for size in sizes if size[1] > size[2]]


def test_build_has_every_file():
  sources, tests, commands = set(), set(), set()

  def glob(include, exclude=()):
    paths = {p for pattern in include for p in _ROOT.glob(pattern)}
    paths -= {p for pattern in exclude for p in _ROOT.glob(pattern)}
    assert paths
    # No build sees .venv.
    return sorted(str(p.relative_to(_ROOT)) for p in paths if '.venv' not in p.parts)

  exec(  # Starlark is nearly Python.
      (_ROOT / 'BUILD').read_text(encoding='utf-8'),
      {
          **dict.fromkeys(('load', 'package', 'licenses', 'exports_files'), lambda *_, **__: None),
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
