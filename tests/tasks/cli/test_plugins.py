"""Tests of plug-ins by name and by module."""

import sys
import types

import pytest
import tensorflow_federated as tff

from tasks import errors
from tasks import methods
from tasks.cli import plugins
from tasks.methods import method


def no_manager():
  return 3


class TestFind:

  @pytest.fixture
  def known(self):
    return {name: methods.METHODS[name] for name in ('dp_fedavg', 'fedsmp_randk')}

  def _find(self, name, known):
    return plugins.find('algorithm', name, known, 'METHOD', method.Method)

  def test_a_flag_names_a_built_in_plug_in_or_a_module(self, known, monkeypatch):
    assert self._find('dp_fedavg', known) is methods.METHODS['dp_fedavg']
    module = types.ModuleType('somebodys')
    module.METHOD = methods.METHODS['fedavg']
    monkeypatch.setitem(sys.modules, 'somebodys', module)
    assert plugins.title('somebodys', known) == 'somebodys'  # Names in files import nothing.
    assert self._find('somebodys', known) is known['somebodys'] is module.METHOD
    assert plugins.title('somebodys', known) == module.METHOD.title
    assert list(known) == ['dp_fedavg', 'fedsmp_randk', 'somebodys']

  @pytest.mark.parametrize('name, reason', [
      ('shakespear', "No module named 'shakespear'"),
      ('json', "module 'json' has no attribute 'METHOD'"),
      ('tests.support.wrong_plugin', 'its METHOD is not a tasks.methods.method.Method'),
      ('..', 'with METHOD. Correct it'),
  ])
  def test_a_name_without_plug_in_is_refused(self, known, name, reason, monkeypatch):
    module = types.ModuleType('tests.support.wrong_plugin')
    module.METHOD = 3
    monkeypatch.setitem(sys.modules, 'tests.support.wrong_plugin', module)
    with pytest.raises(
        errors.InputError,
        match=f'^--algorithm={name} is neither one of dp_fedavg, fedsmp_randk nor .*{reason}',
    ) as error:
      self._find(name, known)
    assert '\n' not in str(error.value)

  def test_a_close_name_is_suggested(self, known):
    with pytest.raises(errors.InputError, match=r'\. Did you mean fedsmp_randk\? Correct it'):
      self._find('fedsmp_rand', known)


class TestCall:

  @pytest.mark.parametrize('name, sentence', [
      ('no_such_module:f', "can't be imported .No module named 'no_such_module'"),
      (f'{__name__}:no_manager', 'returned int, which is not a ReleaseManager'),
      ('', "can't be imported ."),
  ])
  def test_a_wrong_function_is_refused(self, name, sentence):
    with pytest.raises(errors.InputError, match=f'^--release_manager={name} {sentence}'):
      plugins.call('release_manager', name, tff.program.ReleaseManager)
