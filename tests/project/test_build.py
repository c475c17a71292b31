"""Tests that BUILD has the packages that are there, and that its deps are what they import."""

import ast
import collections
import pathlib

import pytest

import fedsmp_tff

_ROOT = pathlib.Path(__file__).parents[2]
_LIBRARY, _COMMAND, _TEST = 'py_library', 'py_binary', 'py_test'
_TEST_MAIN = 'tests/support/pytest_main.py'


def _glob(include, exclude=(), allow_empty=False):
  found = {str(p.relative_to(_ROOT)) for pattern in include for p in _ROOT.glob(pattern)}
  assert found or allow_empty
  return sorted(found - set(exclude))


def _evaluate():
  """Maps each target's name to its rule and arguments; Starlark is nearly Python."""
  targets = {}

  def rule(kind):
    def declare(name, **arguments):
      assert name not in targets
      targets[name] = kind, arguments
    return declare

  def ignore(*unused_arguments, **unused_keywords):
    pass

  names = {kind: rule(kind) for kind in (_LIBRARY, _COMMAND, _TEST)}
  names |= dict.fromkeys(('load', 'package', 'licenses', 'exports_files'), ignore)
  exec((_ROOT / 'BUILD').read_text(encoding='utf-8'), names | {'glob': _glob})
  return targets


_TARGETS = _evaluate()
_OWNERS = {
    source: name
    for name, (_, arguments) in _TARGETS.items()
    for source in arguments['srcs']
    if source != _TEST_MAIN
}


def _deps(name):
  return {dep.removeprefix(':') for dep in _TARGETS[name][1].get('deps', ())}


def _closure(name):
  """All that a target depends on; fails if that is a circle."""
  found, todo = set(), [*_deps(name)]
  while todo:
    dep = todo.pop()
    if dep not in found:
      found.add(dep)
      todo += _deps(dep)
  assert name not in found, f'{name} depends on itself'
  return found


def _owner(module):
  """The target that has a module, or the module that has this attribute."""
  path = module.replace('.', '/')
  return _OWNERS.get(f'{path}.py') or _OWNERS.get(f'{path}/__init__.py')


def _imports(name):
  """The targets whose modules a target imports."""
  modules = []
  for source in _TARGETS[name][1]['srcs']:
    for node in ast.walk(ast.parse((_ROOT / source).read_text(encoding='utf-8'))):
      if isinstance(node, ast.Import):
        modules += [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        modules += [
            f'{node.module}.{alias.name}'
            if _owner(f'{node.module}.{alias.name}') else node.module
            for alias in node.names
        ]
    if source == 'fedsmp_tff/__init__.py':  # Imports by name, when one is first used.
      public = [getattr(fedsmp_tff, attribute) for attribute in fedsmp_tff.__all__]
      modules += [getattr(one, '__module__', None) or one.__name__ for one in public]
  return {_owner(module) for module in modules} - {None, name}


def _of(*kinds):
  return [name for name, (kind, _) in _TARGETS.items() if kind in kinds]


def test_every_file_has_one_target():
  sources = collections.Counter(
      source for _, arguments in _TARGETS.values() for source in arguments['srcs']
  )
  del sources[_TEST_MAIN]
  files = _glob([f'{top}/**/*.py' for top in ('fedsmp_tff', 'tasks', 'tests')], [_TEST_MAIN])
  assert sources == collections.Counter(files)


def test_every_package_has_its_target():
  folders = {
      str(pathlib.Path(file).parent) for file in _glob(['fedsmp_tff/**/*.py', 'tasks/**/*.py'])
  }
  assert {folder.replace('/', '_') for folder in folders} <= {*_of(_LIBRARY)}
  for source, name in _OWNERS.items():
    if _TARGETS[name][0] != _TEST and not source.startswith('tests/'):
      path = pathlib.Path(source)
      assert name in (str(p).replace('/', '_') for p in (path.parent, path.with_suffix('')))


def test_commands_are_the_modules_that_run():
  runnable = [p for p in _glob(['tasks/*.py']) if '__main__' in (_ROOT / p).read_text()]
  assert runnable == [_TARGETS[name][1]['main'] for name in _of(_COMMAND)]


@pytest.mark.parametrize('name', [n for n in _of(_LIBRARY) if not n.startswith('tests')])
def test_a_library_depends_on_what_it_imports(name):
  assert _deps(name) == _imports(name)


def test_commands_depend_on_what_they_import_and_on_no_command():
  imported = set()
  for name in _of(_COMMAND):
    assert _imports(name) <= _deps(name)
    imported |= _imports(name)
    assert not _closure(name) & {*_of(_COMMAND)}
  assert imported == _deps('tasks_run')


@pytest.mark.parametrize('name', ['tests_support', *_of(_TEST)])
def test_a_test_reaches_what_it_imports(name):
  assert _imports(name) <= _closure(name)


def test_the_layering():
  privacy, post_processing = 'fedsmp_tff_privacy', 'fedsmp_tff_post_processing'
  assert not _closure('fedsmp_tff_mechanism') & {privacy, post_processing}
  assert post_processing not in _closure(privacy) and privacy not in _closure(post_processing)
  assert _closure('fedsmp_tff_runtime') == {'fedsmp_tff_flattening'}
  assert not _closure('tasks_models')
  assert all(not name.startswith('tasks') for name in _closure('fedsmp_tff'))
