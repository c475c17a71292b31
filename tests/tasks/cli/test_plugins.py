"""Tests of plug-ins by name and by module."""

import sys
import types

import pytest
import tensorflow_federated as tff

from tasks import errors
from tasks import systems
from tasks.cli import plugins


def no_manager():
  return 3


class TestRegistry:

  @pytest.fixture
  def registry(self):
    built_in = [systems.SYSTEMS[name] for name in ('dp_fedavg', 'fedsmp_randk')]
    return plugins.Registry('algorithm', 'SYSTEM', built_in)

  def test_a_flag_loads_a_name_or_a_module(self, registry, monkeypatch):
    assert registry.names == ('dp_fedavg', 'fedsmp_randk') == tuple(registry)
    assert registry['dp_fedavg'] is systems.SYSTEMS['dp_fedavg']
    module = types.ModuleType('somebodys')
    module.SYSTEM = systems.SYSTEMS['fedavg']
    monkeypatch.setitem(sys.modules, 'somebodys', module)
    assert 'somebodys' not in registry and registry.title('somebodys') == 'somebodys'
    with pytest.raises(KeyError):  # Names that files record import nothing.
      registry['somebodys']
    assert registry.load('somebodys') is registry['somebodys'] is module.SYSTEM
    assert registry.load('dp_fedavg') is registry['dp_fedavg']
    assert registry.title('somebodys') == module.SYSTEM.title
    assert list(registry) == [*registry.names, 'somebodys'] and len(registry) == 3

  @pytest.mark.parametrize('name, reason', [
      ('shakespear', "No module named 'shakespear'"),
      ('json', "module 'json' has no attribute 'SYSTEM'"),
      ('tests.support.wrong_plugin', 'its SYSTEM is not a tasks.systems.system.System'),
      ('..', 'invalid format'),
  ])
  def test_a_wrong_name_or_module_is_refused(self, registry, name, reason, monkeypatch):
    module = types.ModuleType('tests.support.wrong_plugin')
    module.SYSTEM = 3
    monkeypatch.setitem(sys.modules, 'tests.support.wrong_plugin', module)
    with pytest.raises(
        errors.InputError,
        match=f'^--algorithm={name} is neither one of dp_fedavg, fedsmp_randk nor .*{reason}',
    ) as error:
      registry.load(name)
    assert '\n' not in str(error.value)


  def test_a_close_name_is_suggested(self, registry):
    with pytest.raises(errors.InputError, match=r'\. Did you mean fedsmp_randk\?$'):
      registry.load('fedsmp_rand')


class TestCall:

  @pytest.mark.parametrize('name, sentence', [
      ('no_such_module:f', "can't be imported .No module named 'no_such_module'"),
      (f'{__name__}:no_manager', 'returned int, which is not a ReleaseManager'),
      ('', "can't be imported ."),
  ])
  def test_a_wrong_function_is_refused(self, name, sentence):
    with pytest.raises(errors.InputError, match=f'^--release_manager={name} {sentence}'):
      plugins.call('release_manager', name, tff.program.ReleaseManager)
