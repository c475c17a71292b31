"""Tests of what the command `python -m tasks.run` refuses, and of its help."""

import re

import pytest

from tasks import datasets
from tasks import systems
from tasks.cli import options as options_lib
from tasks.cli import place
from tasks.cli import settings
from tests.support import commands


class TestComputation:
  """What is refused, before data are loaded, and how."""

  @pytest.mark.parametrize(
      'arguments, sentence',
      [
          ([], '--task is not set'),
          (['--task=mnist'], 'task.*mnist'),
          (['--algorithm=dpsgd'], 'algorithm.*dpsgd'),
          (['--p=0'], r'--p must be a number > 0 and <= 1; got 0\.0'),
          (['--p=2'], r'--p must be a number > 0 and <= 1; got 2\.0'),
          (['--p=nan'], '--p must be .*; got nan'),
          (['--p=x'], 'flag --p=x'),
          (
              ['--noise_multiplier=-1'],
              r'--noise_multiplier must be a finite number >= 0; got -1\.0',
          ),
          (['--noise_multiplier=inf'], '--noise_multiplier must be a finite number >= 0; got inf'),
          (['--epsilon=nan'], '--epsilon must be .*; got nan'),
          (['--epsilon=0'], r'--epsilon must be a finite number > 0; got 0\.0'),
          (['--epsilon=1', '--noise_multiplier=1'], 'exclude each other'),
          (['--clip=0'], r'--clip must be a finite number > 0; got 0\.0'),
          (['--delta=1'], '--delta must be a number > 0 and < 1; got 1.0'),
          (['--delta=nan'], '--delta must be .*; got nan'),
          (['--rounds=0'], '--rounds must be an integer >= 1; got 0'),
          (['--clients_per_round=0'], '--clients_per_round must be .*; got 0'),
          (['--sampling=shuffle'], 'sampling.*shuffle'),
          (['--noise=laplace'], 'noise.*laplace'),
          (['--clip_quantile=1'], '--clip_quantile must be .* < 1; got 1.0'),
          (['--algorithm=fedavg', '--clip_quantile=0.5'], '--clip_quantile has no effect'),
          (['--clients_per_round=6001'], '6001 is more than the 6000 clients'),
          (['--learning_rate=0'], '--learning_rate must be .* > 0; got 0.0'),
          (['--momentum=1'], '--momentum must be .* < 1; got 1.0'),
          (['--batch_size=0'], '--batch_size must be .* >= 1; got 0'),
          (['--seed=-1'], '--seed must be an integer >= 0 .*; got -1'),
          (['--shakespeare_data=tff'], '--shakespeare_data has no effect unless --task=shake'),
          (
              ['--algorithm=fedavg', '--p=0.1'],
              '--p has no effect unless --algorithm=.* or fedsmp_released\. ',
          ),
          (['--algorithm=dp_fedavg', '--p=0.1'], '--p has no effect'),
          (['--algorithm=fedavg', '--noise=discrete_gaussian'], '--noise has no effect'),
          (
              ['--algorithm=fedavg_topk', '--clip=1'],
              '--clip has no effect unless --algorithm=.* or fedsmp_released\. ',
          ),
          (['--algorithm=fedavg', '--delta=0.1'], '--delta has no effect'),
          (['--algorithm=fedsmp_randk', '--public_clients=1'], '--public_clients has no effect'),
          (['--algorithm=fedsmp_released', '--public_clients=1'], '--public_clients has no effect'),
          (['--public_clients=-1'], '--public_clients must be an integer >= 0; got -1'),
          (['--algorithm=fedsmp_randk', '--released_weight=1'], '--released_weight has no effect'),
          (['--released_weight=-1'], r'--released_weight must be .* >= 0 .*; got -1\.0'),
          (['--clip_schedule=learning_rate', '--clip_quantile=0.5'], 'exclude each other'),
          (['--validation_examples=0'], '--validation_examples must be an integer >= 1; got 0'),
          (['--trainable=head', '--warm_start=none'], 'head requires pre-trained layers. Set --warm'),
          (['--trainable=body'], 'trainable.*body'),
          (['--output_dir=/dev/null/x'], '--output_dir=/dev/null/x can\'t be written'),
          (['--data_dir=/none'], '/none/train-images-idx3-ubyte.gz does not'),
          (['--runtime=tpu'], 'runtime.*tpu'),
          (['--workers=0'], '--workers must be an integer >= 1; got 0'),
          (['--devices=GPU:9'], "--devices=GPU:9: .*'GPU:9', which TensorFlow does not see"),
          (['--devices='], '--devices=: .*empty'),
          (['--runtime=ray', '--devices=GPU:0'], '--devices has no effect unless --runtime=local.'),
          (['--client_timeout=3'], '--client_timeout has no effect unless --runtime=ray.'),
          (['--ray_address=auto'], '--ray_address has no effect unless --runtime=ray.'),
          (
              ['--runtime=ray', '--client_timeout=nan'],
              '--client_timeout must be a finite number > 0; got nan',
          ),
          (['--runtime=ray', '--ray_address=127.0.0.1:1'], 'no Ray cluster answers'),
          (['--flagfile=/none/flags'], '/none/flags'),
          (['--no_such_flag=1'], 'no_such_flag'),
          (['stray'], "'stray' is not a flag"),
      ],
  )
  def test_one_sentence_and_status_2(self, capsys, tmp_path, arguments, sentence):
    where = [] if any('output_dir' in a for a in arguments) else [
        f'--output_dir={tmp_path}/run'
    ]
    task = [] if not arguments or arguments[0].startswith('--task') else [
        '--task=fashion_mnist'
    ]
    if not any('_dir=/none' in a for a in arguments):
      # Data that can't be loaded: the flag must be refused first.
      task += ['--data_dir=/never/read'] if task else []
    said = commands.say(capsys, *task, *where, *arguments)
    assert re.search(sentence, said), said
    assert '/never/read' not in said
    assert not (tmp_path / 'run').exists()

  def test_a_flagfile_with_an_unknown_flag_is_named(self, capsys, tmp_path):
    path = tmp_path / 'flags'
    path.write_text('--task=fashion_mnist\n--raunds=3\n')
    said = commands.say(capsys, f'--flagfile={path}')
    assert "Unknown command line flag 'raunds'" in said and f'in {path};' in said

  def test_epsilon_and_public_examples_that_can_not_be(self, capsys, data_dir, tmp_path):
    tiny = commands.tiny(data_dir, tmp_path / 'run', '--algorithm=fedsmp_topk')[1:]
    assert 'No noise multiplier' in commands.say(capsys, *tiny, '--epsilon=1e-12', '--delta=1e-9')
    assert '--public_examples=60' in commands.say(capsys, *tiny, '--public_examples=60')
    assert '--public_clients=9 exceeds the 8 public examples' in commands.say(
        capsys, *tiny, '--public_clients=9'
    )
    assert not (tmp_path / 'run').exists()

  def test_help_is_the_ten_flags_that_most_runs_need(self, capsys):
    assert commands.main(['run', '--help']) == 0
    text = capsys.readouterr().out
    assert re.findall(r'^  --(\w+)(?:=<.*)?[:|]', text, re.MULTILINE) == [
        'task', 'algorithm', 'trainable', 'p', 'rounds', 'clients_per_round', 'seed', 'epsilon',
        'clip', 'output_dir',
    ]
    assert text.endswith('All flags: --helpfull\n')
    assert len(text.splitlines()) < 60

  def test_help_names_every_flag_once_under_its_group(self, capsys):
    assert commands.main(['run', '--helpfull']) == 0
    text = capsys.readouterr().out
    tables = (settings.RunSettings, place.OutputSettings, place.PlaceSettings)
    found = {}
    for title, body in re.findall(r'^(\S.*):\n((?:  .*\n)+)', text, re.MULTILINE):
      for name in re.findall(r'^  --(\w+)(?:=<.*)?[:|]', body, re.MULTILINE):
        assert name not in found
        found[name] = title
    for table in tables:
      for name, option in options_lib.options_of(table).items():
        assert found.pop(name) == option.group
    for table in {systems.SYSTEMS[name].options for name in systems.SYSTEMS.names} - {None}:
      for name, option in options_lib.options_of(table).items():
        assert found.pop(name) == option.group
    assert found == {
        f'{task}_{name}': f'Only for --task={task}'
        for task in datasets.TASKS.names if datasets.TASKS[task].options
        for name in options_lib.options_of(datasets.TASKS[task].options)
    }
    assert 'repeat this option' not in text
