"""Tests of a run's settings: defaults, flag files and identity."""

import dataclasses
import json
import sys
import types

import pytest

from tasks import datasets
from tasks import errors
from tasks import methods
from tasks.cli import options
from tasks.training import runtime_flags
from tasks.training import settings


def _settings(*arguments):
  return settings.parse(['--task=fashion_mnist', *arguments])[0]


class TestParse:

  @pytest.mark.parametrize('task', datasets.NAMES)
  def test_the_task_has_the_defaults(self, task):
    defaults = datasets.TASKS[task].defaults
    found, where = settings.parse([f'--task={task}'])
    for field in dataclasses.fields(defaults):
      if field.name not in (
          'learning_rate_decay', 'learning_rate_decay_rounds', 'paper_population'
      ):
        assert getattr(found, field.name) == getattr(defaults, field.name)
    # They protect the clients in the data.
    assert found.sampling == 'poisson' and found.epsilon <= 8 and found.noise_multiplier is None
    assert where == runtime_flags.RuntimeSettings()

  def test_two_modules_may_have_options_of_one_name(self, monkeypatch):
    for name in ('first', 'second'):
      own = dataclasses.make_dataclass('Own', [('size', int, options.option(1, 'Size.'))])
      module = types.ModuleType(name)
      module.TASK = dataclasses.replace(datasets.TASKS['fashion_mnist'], name='own', options=own)
      monkeypatch.setitem(sys.modules, name, module)
      assert _settings(f'--task={name}', '--own_size=2').task_options == own(size=2)

  def test_settings_without_effect_are_none(self):
    found = _settings('--algorithm=fedavg')
    assert [found.p, found.clip, found.noise_multiplier, found.epsilon] == [None] * 4
    assert found.sampling == 'fixed_size'
    assert _settings(
        '--algorithm=fedavg', '--warm_start=none', '--trainable=all'
    ).public_examples is None
    assert _settings('--noise_multiplier=1').epsilon is None
    assert _settings('--server_optimizer=fedexp').server_learning_rate is None
    assert _settings().method_options.public_clients == 0
    assert settings.parse(['--task=shakespeare', '--eval_examples=0'])[0].eval_examples == 0

  def test_a_system_fixes_flags_also_of_files(self, tmp_path):
    fixed = methods.METHODS['public_only'].fixed
    (tmp_path / 'file').write_text('--rounds=5\n--warm_start=none\n--trainable=head\n')
    found = _settings(f'--flagfile={tmp_path}/file', '--algorithm=public_only', '--rounds=0')
    assert {name: getattr(found, name) for name in fixed} == fixed
    assert found.public_examples == datasets.TASKS['fashion_mnist'].defaults.public_examples
    with pytest.raises(errors.InputError, match='--rounds=5 has no effect, because --algorithm=pu'):
      _settings('--algorithm=public_only', '--rounds=5')

  def test_further_options(self):
    @dataclasses.dataclass(frozen=True)
    class Own:
      own: int = options.option(3, 'Own.', at_least=1)

    *_, own = settings.parse(['--task=svhn', '--own=4', '--rounds=9'], Own)
    assert own == Own(own=4)
    with pytest.raises(errors.InputError, match='--own must be an integer >= 1; got 0'):
      settings.parse(['--task=svhn', '--own=0'], Own)
    with pytest.raises(errors.InputError, match=r"flag 'own'.*\(see a command --help\)"):
      settings.parse(['--task=svhn', '--own=4'], program='a command')

  def test_a_repeated_option_of_a_plug_in_is_refused(self, monkeypatch):
    module = types.ModuleType('somebodys')
    module.METHOD = dataclasses.replace(
        methods.METHODS['fedsmp_randk'], name='somebodys', options=runtime_flags.RuntimeSettings
    )
    monkeypatch.setitem(sys.modules, 'somebodys', module)
    with pytest.raises(errors.InputError, match="flag exists: The flag '.*Rename the option") as e:
      settings.parse(['--task=svhn', '--algorithm=somebodys'])
    assert '\n' not in str(e.value)


class TestFlagfile:

  def test_files_in_files_and_what_is_typed_wins(self, tmp_path):
    (tmp_path / 'inner').write_text('--rounds=7\n--shakespeare_lstm=keras\n')
    (tmp_path / 'outer').write_text(f'# Some.\n\n--task=shakespeare\n--flagfile={tmp_path}/inner\n')
    file = f'--flagfile={tmp_path}/outer'
    found = settings.parse([file, '--seed=3'])[0]
    assert (found.task, found.rounds, found.seed) == ('shakespeare', 7, 3)
    assert found.task_options.lstm == 'keras'
    (tmp_path / 'later').write_text('--rounds=9\n--noise_multiplier=2\n')
    assert settings.parse([file, f'--flagfile={tmp_path}/later'])[0].rounds == 9
    for flags in (['--rounds=8'], ['--rounds', '8']):
      assert settings.parse([file, *flags])[0].rounds == 8
      assert settings.parse([*flags, '--flagfile', f'{tmp_path}/outer'])[0].rounds == 8

  def test_flag_files_may_have_flags_without_effect(self, tmp_path):
    (tmp_path / 'file').write_text(
        '--task=fashion_mnist\n--p=0.1\n--clip=2\n--noise_multiplier=3\n--public_clients=2\n'
    )
    file = f'--flagfile={tmp_path}/file'
    found = settings.parse([file])[0]
    assert (found.p, found.clip, found.method_options.public_clients) == (0.1, 2, 2)
    dense = settings.parse([file, '--algorithm=dp_fedavg'])[0]
    assert (dense.p, dense.clip, dense.noise_multiplier) == (None, 2, 3)
    plain = settings.parse([file, '--algorithm=fedavg'])[0]
    assert (plain.p, plain.clip, plain.noise_multiplier) == (None, None, None)
    assert settings.parse([file, '--epsilon=2'])[0].noise_multiplier is None
    # Out of range it is an error there too, and so is a flag that is none.
    for line in ('--p=7', '--nothing=3'):
      (tmp_path / 'wrong').write_text(f'--task=fashion_mnist\n{line}\n')
      with pytest.raises(errors.InputError, match='p must be|flag .nothing.'):
        settings.parse([f'--flagfile={tmp_path}/wrong'])


class TestIdentity:

  def test_identity_leaves_out_paths_and_budget(self):
    found = settings.parse([
        '--task=shakespeare', '--data_dir=/x', '--p=0.5', '--seed=1', '--epsilon_budget=9',
        '--shakespeare_lstm=keras', '--public_clients=3',
    ])[0]
    values = settings.identity(found)
    assert values == json.loads(json.dumps(values))
    known = set(options.options_of(settings.RunSettings)) - {'epsilon_budget'}
    assert set(values) - known == {
        'shakespeare_data', 'shakespeare_protocol', 'shakespeare_lstm', 'public_clients',
    }
    assert (values['p'], values['seed'], values['public_clients']) == (0.5, 1, 3)
