"""Tests of a run's settings: options once each, and command lines that change nothing."""

import dataclasses
import json
from typing import Optional

import pytest

from tasks import datasets
from tasks import errors
from tasks import systems
from tasks.cli import options
from tasks.cli import place
from tasks.cli import settings
from tests.support import commands

_TABLES = (settings.RunSettings, place.PlaceSettings, place.OutputSettings)


def _settings(*arguments):
  return settings.parse(['--task=fashion_mnist', *arguments])[0]


class TestOptions:

  @pytest.mark.parametrize('table', _TABLES)
  def test_every_field_is_an_option_with_help_and_a_group(self, table):
    known = options.options_of(table)
    names = [field.name for field in dataclasses.fields(table)]
    assert [name for name in names if name not in ('task_options', 'system_options')] == list(known)
    for option in known.values():
      assert option.help and option.group

  def test_no_two_have_one_name(self):
    names = [name for table in _TABLES for name in options.options_of(table)]
    own = [datasets.TASKS[name].options for name in datasets.TASKS.names]
    names += [f'{task}_{name}' for task, table in zip(datasets.TASKS.names, own) if table
              for name in options.options_of(table)]
    tables = {system.options for system in systems.SYSTEMS.values() if system.options}
    names += [name for table in tables for name in options.options_of(table)]
    assert len(set(names)) == len(names)

  def test_one_field_is_all_that_a_new_option_needs(self):
    @dataclasses.dataclass(frozen=True)
    class More(settings.RunSettings):
      sharpness: Optional[float] = options.option(
          None, 'Sharpness of the mask.', group='Training', above=0,
          requires=options.when('algorithm', 'fedsmp_topk'),
      )

    def parsed(*arguments):
      made = options.new_flags(More)
      made(['run', '--task=svhn', *arguments])
      return made

    def more(*arguments):
      return options.make(
          More, parsed(*arguments), task_options=None, system_options=None
      )

    assert more('--sharpness=2').sharpness == 2 and more().sharpness is None
    assert settings.identity(more('--sharpness=2'))['sharpness'] == 2
    with pytest.raises(errors.InputError, match='--sharpness must be a finite number > 0'):
      more('--sharpness=0')
    with pytest.raises(errors.InputError, match='--sharpness has no effect unless --algorithm=fed'):
      more('--sharpness=2', '--algorithm=fedavg')
    text = '\n'.join(options.help_lines(parsed(), More))
    assert text.count('--sharpness: Sharpness of the mask.') == 1

  def test_names_that_others_give_are_options(self):
    known = options.options_of(settings.RunSettings)
    for option in known.values():
      assert set(option.excludes) <= set(known)
    # Tables and figures have places for these.
    assert {name for name, option in known.items() if not option.in_comparisons} == {
        'seed', 'p', 'rounds', 'noise_multiplier', 'epsilon', 'rounds_per_evaluation',
        'eval_examples', 'epsilon_budget',
    }


class TestParse:

  @pytest.mark.parametrize('task', datasets.TASKS.names)
  def test_the_task_has_the_defaults(self, task):
    defaults = datasets.TASKS[task].defaults
    found, where, output = settings.parse([f'--task={task}'])
    for field in dataclasses.fields(defaults):
      if field.name not in ('learning_rate_decay', 'learning_rate_decay_rounds', 'paper_population'):
        assert getattr(found, field.name) == getattr(defaults, field.name)
    # They protect the clients in the data.
    assert found.sampling == 'poisson' and found.epsilon <= 8 and found.noise_multiplier is None
    assert where == place.PlaceSettings() and output == place.OutputSettings()

  def test_what_the_system_does_not_have_is_none(self):
    found = _settings('--algorithm=fedavg')
    assert [found.p, found.clip, found.noise_multiplier, found.epsilon] == [None] * 4
    assert found.sampling == 'fixed_size'
    assert _settings(
        '--algorithm=fedavg', '--warm_start=none', '--trainable=all'
    ).public_examples is None
    assert _settings('--noise_multiplier=1').epsilon is None
    assert _settings().system_options.public_clients == 0
    assert settings.parse(['--task=shakespeare', '--eval_examples=0'])[0].eval_examples == 0

  @pytest.mark.parametrize(
      'flags, sentence',
      [
          ('--algorithm=dp_fedavg --p=0.1', '--p has no effect unless --algorithm=fedsmp_topk, fed'),
          ('--algorithm=fedavg --clip=1', '--clip has no effect unless --algorithm=fedsmp_topk, fed'),
          ('--algorithm=dp_fedavg --public_clients=2',
           '--public_clients has no effect unless --algorithm=fedsmp_topk or fedavg_topk. Set that, or'),
          ('--shakespeare_lstm=keras', '--shakespeare_lstm has no effect unless --task=shakespeare'),
          ('--warm_start=none', '--trainable=head requires pre-trained layers. Set --warm_start=public'),
          ('--warm_start=none --trainable=all --algorithm=dp_fedavg --public_examples=3',
           '--public_examples has no effect unless --algorithm=fedsmp_topk'),
          ('--algorithm=public_only --rounds=3', '--rounds has no effect unless'),
          ('--epsilon=1 --noise_multiplier=1', '--epsilon=1.0 and --noise_multiplier=1.0 exclude'),
          ('--p=2', '--p must be a number > 0 and <= 1; got 2'),
          ('--rounds=0', '--rounds must be an integer >= 1; got 0'),
          ('--clip=nan', '--clip must be a finite number > 0; got nan'),
          ('--algorithm=fedsmp', '--algorithm=fedsmp is neither one of fedsmp_topk, '),
          ('--flagfile=none_such', 'flagfile'),
      ],
  )
  def test_what_is_refused(self, flags, sentence):
    with pytest.raises(errors.InputError) as error:
      _settings(*flags.split())
    assert sentence in str(error.value) and '\n' not in str(error.value)

  def test_public_only_is_a_run_without_rounds(self):
    found = _settings('--algorithm=public_only', '--public_examples=300')
    assert (found.rounds, found.warm_start, found.public_examples) == (0, 'public', 300)
    assert found.learning_rate and found.clip is None

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


class TestFlagfile:

  def test_files_in_files_and_what_comes_later_wins(self, tmp_path):
    (tmp_path / 'inner').write_text('--rounds=7\n--shakespeare_lstm=keras\n')
    (tmp_path / 'outer').write_text(f'# Some.\n\n--task=shakespeare\n--flagfile={tmp_path}/inner\n')
    file = f'--flagfile={tmp_path}/outer'
    found = settings.parse([file, '--seed=3'])[0]
    assert (found.task, found.rounds, found.seed) == ('shakespeare', 7, 3)
    assert found.task_options.lstm == 'keras'
    assert settings.parse([file, '--rounds=8'])[0].rounds == 8
    assert settings.parse(['--rounds=8', '--flagfile', f'{tmp_path}/outer'])[0].rounds == 7

  def test_what_has_no_effect_with_the_system_is_ignored_in_it_alone(self, tmp_path):
    (tmp_path / 'file').write_text(
        '--task=fashion_mnist\n--p=0.1\n--clip=2\n--noise_multiplier=3\n--public_clients=2\n'
    )
    file = f'--flagfile={tmp_path}/file'
    found = settings.parse([file])[0]
    assert (found.p, found.clip, found.system_options.public_clients) == (0.1, 2, 2)
    dense = settings.parse([file, '--algorithm=dp_fedavg'])[0]
    assert (dense.p, dense.clip, dense.noise_multiplier) == (None, 2, 3)
    plain = settings.parse([file, '--algorithm=fedavg'])[0]
    assert (plain.p, plain.clip, plain.noise_multiplier) == (None, None, None)
    assert settings.parse([file, '--epsilon=2'])[0].noise_multiplier is None
    # Out of range it is an error there too, and so is a flag that is none.
    for line in ('--p=7', '--nothing=3'):
      (tmp_path / 'wrong').write_text(f'--task=fashion_mnist\n{line}\n')
      with pytest.raises(errors.InputError, match='p must be|It is in .*wrong'):
        settings.parse([f'--flagfile={tmp_path}/wrong'])


class TestIdentity:

  def test_it_has_all_but_where_things_are_and_the_budget(self):
    found = settings.parse([
        '--task=shakespeare', '--data_dir=/x', '--p=0.5', '--seed=1', '--epsilon_budget=9',
        '--shakespeare_lstm=keras', '--public_clients=3',
    ])[0]
    values = settings.identity(found)
    assert values == json.loads(json.dumps(values))
    known = set(options.options_of(settings.RunSettings)) - {'epsilon_budget'}
    assert set(values) - known == {
        'shakespeare_data', 'shakespeare_protocol', 'shakespeare_lstm', 'public_clients',
        'released_weight',
    }
    assert (values['p'], values['seed'], values['public_clients']) == (0.5, 1, 3)

  def test_config_json_has_that_of_its_command(self, data_dir, tmp_path):
    assert commands.main(commands.tiny(data_dir, tmp_path / 'run', '--seed=1')) == 0
    config = json.loads((tmp_path / 'run' / 'config.json').read_text())
    arguments = commands.tiny(data_dir, tmp_path / 'run', '--seed=1')[1:]
    assert config['flags'] == settings.identity(settings.parse(arguments)[0])
