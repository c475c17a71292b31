"""Tests that BUILD has one target for each module, with its sources and imports."""

import ast
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_PACKAGES = ('fedsmp_tff', 'tasks', 'tests')


def _targets():
  """Name to (rule, sources, deps); Starlark's calls are Python's."""
  found = {}
  for node in ast.parse((_ROOT / 'BUILD').read_text()).body:
    call = getattr(node, 'value', None)
    if not isinstance(call, ast.Call) or not call.func.id.startswith('py_'):
      continue
    given = {
        k.arg: ast.literal_eval(k.value)
        for k in call.keywords
        if k.arg != 'data'  # A glob, of what is not Python.
    }
    assert given['name'] not in found
    found[given['name']] = call.func.id, given['srcs'], given.get('deps', [])
  return found


def _files():
  return {
      str(path.relative_to(_ROOT))
      for package in _PACKAGES
      for path in (_ROOT / package).rglob('*.py')
  }


def _module_file(module):
  for candidate in (module.replace('.', '/') + '.py', module.replace('.', '/') + '/__init__.py'):
    if (_ROOT / candidate).exists():
      return candidate
  return None


def _imports(path):
  """Files of this project that a file imports."""
  files = set()
  for node in ast.walk(ast.parse((_ROOT / path).read_text())):
    if isinstance(node, ast.ImportFrom):
      for name in node.names:
        files.add(_module_file(f'{node.module}.{name.name}') or _module_file(node.module))
    elif isinstance(node, ast.Import):
      files |= {_module_file(name.name) for name in node.names}
  return files - {None, path}


def test_every_file_has_one_target():
  sources = [source for _, srcs, _ in _targets().values() for source in srcs]
  assert sorted(sources) == sorted(_files())


def test_rules_fit_the_files():
  for rule, (source,), _ in _targets().values():
    if pathlib.Path(source).name.startswith('test_'):
      assert rule == 'py_test', source
    elif "if __name__ == '__main__'" in (_ROOT / source).read_text() and (
        source.startswith('tasks/')
    ):
      assert rule == 'py_binary', source
    else:
      assert rule == 'py_library', source


@pytest.mark.parametrize('name', _targets())
def test_deps_are_the_imports(name):
  targets = _targets()
  _, (source,), deps = targets[name]
  depends_on = {targets[dep.removeprefix(':')][1][0] for dep in deps}
  extra = {f for f in depends_on if f.endswith('conftest.py')}
  assert depends_on - extra == _imports(source)
