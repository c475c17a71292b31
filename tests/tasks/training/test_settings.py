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
    defaults = defaults.for_method(defaults.algorithm)
    found, where = settings.parse([f'--task={task}'])
    for field in dataclasses.fields(defaults):
      if field.name not in (
          'learning_rate_decay', 'learning_rate_decay_rounds', 'paper_population', 'by_method',
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
    with pytest.raises(errors.InputError, match=r"--own is not a flag.*\(see a command --help\)"):
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


class TestDefaultsOfMethods:

  @pytest.mark.parametrize('task', datasets.NAMES)
  def test_defaults_name_methods_and_flags_that_exist(self, task):
    defaults = datasets.TASKS[task].defaults
    assert {defaults.algorithm, *defaults.by_method} <= {*methods.NAMES}
    for method, own in defaults.by_method.items():
      assert own and {*own} <= {*options.options_of(settings.RunSettings)} - {'task', 'algorithm'}
      found = settings.parse([f'--task={task}', f'--algorithm={method}'])[0]
      assert {name: getattr(found, name) for name in own} == own
      # They differ from the task's, or they say nothing.
      assert all(getattr(defaults, name) != value for name, value in own.items())

  def test_a_flag_precedes_a_file_a_method_and_the_task(self, tmp_path):
    defaults = datasets.TASKS['shakespeare'].defaults
    of_task = defaults.server_learning_rate
    of_method = defaults.by_method['fedsmp_randk']['server_learning_rate']
    (tmp_path / 'rate').write_text('--server_learning_rate=2\n')
    (tmp_path / 'method').write_text('--algorithm=fedsmp_topk\n')
    rate, method = (f'--flagfile={tmp_path}/{name}' for name in ('rate', 'method'))
    randk, typed = '--algorithm=fedsmp_randk', '--server_learning_rate=3'
    for flags, algorithm, expected in [
        ((), 'fedsmp_randk', of_method),
        (('--algorithm=dp_fedavg',), 'dp_fedavg', of_task),
        ((method,), 'fedsmp_topk', of_task),
        ((method, randk), 'fedsmp_randk', of_method),
        ((rate,), 'fedsmp_randk', 2),
        ((rate, typed), 'fedsmp_randk', 3),
        # The task's value is an ordinary one when it is typed, or in a file.
        ((f'--server_learning_rate={of_task}',), 'fedsmp_randk', of_task),
    ]:
      found = settings.parse(['--task=shakespeare', *flags])[0]
      assert (found.algorithm, found.server_learning_rate) == (algorithm, expected), flags
    # FedExP has no rate, of whatever kind.
    fedexp = settings.parse(['--task=shakespeare', '--server_optimizer=fedexp'])[0]
    assert fedexp.server_learning_rate is None

  def test_the_cap_of_a_method_can_be_taken_off(self):
    caps = {(): 16, ('--max_client_examples=0',): None, ('--algorithm=dp_fedavg',): None}
    # The paper's clients train on all of their lines.
    caps[('--flagfile=tasks/experiments/paper/shakespeare.flags', '--algorithm=fedsmp_randk')] = None
    for flags, cap in caps.items():
      found = settings.parse(['--task=shakespeare', *flags])[0]
      assert found.max_client_examples == cap, flags

  def test_a_task_of_ones_own_has_them_too(self, monkeypatch):
    module, own = types.ModuleType('my_task'), {'dp_fedavg': {'rounds': 3, 'clip': 0.5}}
    defaults = dataclasses.replace(
        datasets.TASKS['svhn'].defaults, algorithm='dp_fedavg', by_method=own
    )
    module.TASK = dataclasses.replace(datasets.TASKS['svhn'], name='mine', defaults=defaults)
    monkeypatch.setitem(sys.modules, 'my_task', module)
    found = settings.parse(['--task=my_task'])[0]
    assert (found.algorithm, found.rounds, found.clip) == ('dp_fedavg', 3, 0.5)
    found = settings.parse(['--task=my_task', '--algorithm=fedsmp_topk'])[0]
    assert (found.rounds, found.clip) == (defaults.rounds, defaults.clip)


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
      with pytest.raises(errors.InputError, match='p must be|--nothing is not'):
        settings.parse([f'--flagfile={tmp_path}/wrong'])


class TestIdentity:

  def test_identity_leaves_out_paths_and_budget(self):
    found = settings.parse([
        '--task=shakespeare', '--algorithm=fedsmp_topk', '--data_dir=/x', '--p=0.5', '--seed=1',
        '--epsilon_budget=9', '--shakespeare_lstm=keras', '--public_clients=3',
    ])[0]
    values = settings.identity(found)
    assert values == json.loads(json.dumps(values))
    known = set(options.options_of(settings.RunSettings)) - {'epsilon_budget'}
    assert set(values) - known == {
        'shakespeare_data', 'shakespeare_protocol', 'shakespeare_lstm', 'public_clients',
    }
    assert (values['p'], values['seed'], values['public_clients']) == (0.5, 1, 3)
