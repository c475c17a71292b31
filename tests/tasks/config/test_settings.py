"""Tests of a run's settings: options once each, and command lines that change nothing."""

import dataclasses
import json
from typing import Optional

from absl import flags
import pytest

from tasks import datasets
from tasks import errors
from tasks.config import grids
from tasks.config import options
from tasks.config import runtime
from tasks.config import settings
from tasks.config import task_flags
from tests.support import commands

_TABLES = (settings.RunSettings, runtime.RuntimeSettings, settings.OutputSettings)


def _settings(*arguments):
  return settings.parse(['--task=fashion_mnist', *arguments])[0]


def _global_flags():
  return {name: (flags.FLAGS[name].value, flags.FLAGS[name].present) for name in flags.FLAGS}


class TestOptions:

  @pytest.mark.parametrize('table', _TABLES)
  def test_every_field_is_an_option_with_help_and_a_group(self, table):
    known = options.options_of(table)
    names = [field.name for field in dataclasses.fields(table)]
    assert [name for name in names if name not in ('task_flags', 'recipe')] == list(known)
    for option in known.values():
      assert option.help and option.group

  def test_no_two_have_one_name(self):
    names = [name for table in _TABLES for name in options.options_of(table)]
    names += [name for task in datasets.TASKS for name in task_flags.names(task)]
    assert len(set(names)) == len(names)

  def test_one_field_is_all_that_a_new_option_needs(self):
    @dataclasses.dataclass(frozen=True)
    class More(settings.RunSettings):
      sharpness: Optional[float] = options.option(
          None, 'Sharpness of the mask.', group='Training', above=0,
          only=options.when('algorithm', 'fedsmp_topk'),
      )

    def parsed(*arguments):
      made = options.new_flags(More)
      made(['run', '--task=svhn', *arguments])
      return made

    def more(*arguments):
      return options.make(More, parsed(*arguments), task_flags={})

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
    assert {name for name, option in known.items() if not option.compared} == {
        'seed', 'p', 'rounds', 'noise_multiplier', 'epsilon', 'rounds_per_evaluation',
        'eval_examples', 'epsilon_budget',
    }


class TestParse:

  @pytest.mark.parametrize('task', datasets.TASKS)
  def test_the_task_has_the_defaults(self, task):
    paper = datasets.TASKS[task].settings
    found, place, output = settings.parse([f'--task={task}'])
    for name in (
        'rounds', 'clients_per_round', 'noise_multiplier', 'learning_rate', 'momentum',
        'batch_size', 'local_epochs', 'public_examples',
    ):
      assert getattr(found, name) == getattr(paper, name)
    assert (found.clip, found.p, found.sampling) == (
        paper.clipping_norm, paper.topk_ratio, 'poisson'
    )
    assert set(found.task_flags) == set(task_flags.names(task))
    assert place == runtime.RuntimeSettings() and output == settings.OutputSettings()

  def test_what_the_algorithm_does_not_have_is_none(self):
    found = _settings('--algorithm=fedavg')
    assert [found.p, found.clip, found.noise_multiplier] == [None] * 3
    assert found.public_examples is None and found.sampling == 'fixed'
    assert _settings('--algorithm=fedavg_randk').p == 0.4
    assert _settings('--epsilon=1').noise_multiplier is None
    assert settings.parse(['--task=shakespeare', '--eval_examples=0'])[0].eval_examples == 0

  def test_nothing_is_left_behind(self):
    task_flags.use({'fashion_mnist_clients': 17})
    before = _global_flags()
    own = [
        '--algorithm=fedsmp_randk', '--fashion_mnist_clients=5', '--runtime=ray', '--overwrite',
        '--fashion_mnist_filters=1,2',
    ]
    for _ in range(2):
      found, place, output = settings.parse(['--task=fashion_mnist', *own])
      assert found.task_flags['fashion_mnist_clients'] == 5
      assert found.task_flags['fashion_mnist_filters'] == ['1', '2']
      assert place.runtime == 'ray' and output.overwrite
      plain, place, output = settings.parse(['--task=fashion_mnist'])
      # The default, not what the tasks use at the moment.
      assert plain.task_flags['fashion_mnist_clients'] == 6000
      assert place.runtime == 'local' and not output.overwrite
    with pytest.raises(errors.InputError):
      settings.parse(['--task=fashion_mnist', '--p=2', '--fashion_mnist_clients=5'])
    grids.Cell.of(['--task=svhn', '--svhn_clients=3']).identity  # noqa: B018  (made to be read)
    assert _global_flags() == before
    assert datasets.TASKS['fashion_mnist'].num_clients() == 17

  def test_the_tasks_use_a_runs_flags(self):
    found = _settings('--fashion_mnist_clients=5')
    task_flags.use(found.task_flags)
    assert datasets.TASKS['fashion_mnist'].num_clients() == 5
    task_flags.use(_settings().task_flags)
    assert datasets.TASKS['fashion_mnist'].num_clients() == 6000

  def test_flagfiles(self, tmp_path):
    (tmp_path / 'inner').write_text('--rounds=7\n--svhn_clients=4\n')
    (tmp_path / 'outer').write_text(f'# Some.\n\n--task=svhn\n--flagfile={tmp_path}/inner\n')
    file = f'--flagfile={tmp_path}/outer'
    found = settings.parse([file, '--seed=3'])[0]
    assert (found.task, found.rounds, found.seed) == ('svhn', 7, 3)
    assert found.task_flags['svhn_clients'] == 4
    assert settings.parse([file, '--rounds=8'])[0].rounds == 8
    assert settings.parse(['--rounds=8', file])[0].rounds == 7

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


class TestIdentity:

  def test_it_has_all_but_where_data_are(self):
    found = _settings('--fashion_mnist_dir=/x', '--fashion_mnist_clients=5', '--p=0.5', '--seed=1')
    values = settings.identity(found)
    assert values == json.loads(json.dumps(values))
    known = set(options.options_of(settings.RunSettings))
    own = {name for name in task_flags.names('fashion_mnist') if not name.endswith('_dir')}
    # A run that has spent its budget resumes with a larger one.
    assert set(values) == (known | own) - {'epsilon_budget'}
    assert (values['p'], values['seed'], values['fashion_mnist_clients']) == (0.5, 1, 5)
    assert values == settings.identity(
        _settings('--seed=1', '--fashion_mnist_clients=5', '--p=0.5')
    )

  def test_config_json_has_that_of_its_command(self, data_dir, tmp_path):
    assert commands.main(commands.tiny(data_dir, tmp_path / 'run', '--seed=1')) == 0
    config = json.loads((tmp_path / 'run' / 'config.json').read_text())
    arguments = commands.tiny(data_dir, tmp_path / 'run', '--seed=1')[1:]
    found = settings.parse(arguments)[0]
    assert config['flags'] == settings.identity(found)
    assert config['task_flags'] == found.task_flags


class TestFlagsOfAnotherRun:

  def _config(self, tmp_path, found):
    (tmp_path / 'config.json').write_text(json.dumps({'flags': settings.identity(found)}))
    return f'--config={tmp_path}'

  @pytest.mark.parametrize('grid', grids.names())
  def test_they_make_the_same_run(self, grid, tmp_path):
    for cell in [cell for paragraph in grids.read(grid) for cell in paragraph][:3]:
      found = settings.parse([*cell.flags, '--seed=3'])[0]
      config = self._config(tmp_path, found)
      assert settings.identity(settings.parse([config])[0]) == settings.identity(found)
      assert settings.parse([f'{config}/config.json'])[0] == settings.parse([config])[0]

  def test_defaults_that_follow_from_other_flags(self, tmp_path):
    # Five rounds a mask are the default of top-k, and not beside --public_clients.
    found = _settings('--public_clients=2', '--mask_rounds=5')
    config = self._config(tmp_path, found)
    assert settings.identity(settings.parse([config])[0]) == settings.identity(found)

  def test_flags_given_explicitly_win(self, tmp_path):
    config = self._config(tmp_path, _settings('--epsilon=2', '--p=0.1', '--public_clients=3'))
    found = settings.parse([config, '--noise_multiplier=3', '--p=0.2'])[0]
    assert (found.epsilon, found.noise_multiplier, found.p) == (None, 3, 0.2)
    assert found.public_clients == 3
    # What an explicit flag leaves without effect is left out.
    other = settings.parse([config, '--algorithm=fedavg'])[0]
    assert (other.p, other.epsilon, other.public_clients) == (None, None, None)
    assert settings.parse(['--recipe=best', '--task=shakespeare', '--algorithm=dp_fedavg'])[0].p is None

  @pytest.mark.parametrize('content', [None, 'no JSON', '[]', '{}', '{"flags": {}}'])
  def test_files_that_are_no_config(self, content, tmp_path):
    if content is not None:
      (tmp_path / 'config.json').write_text(content)
    with pytest.raises(errors.InputError, match=f"--config={tmp_path} is not a run's config.json"):
      settings.parse([f'--config={tmp_path}'])

  def test_one_preset_at_a_time(self, tmp_path):
    config = self._config(tmp_path, _settings())
    with pytest.raises(errors.InputError, match='exclude each other'):
      settings.parse([config, '--recipe=best'])
