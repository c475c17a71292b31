"""Tests of the refusals of `python -m tasks.run`, and of its help."""

import re

import pytest

from tasks.training import settings
from tests.support import commands

_FLAG = re.compile(r'^  --(?:\[no\])?(\w+)(?:=\S+)?$', re.MULTILINE)


class TestComputation:
  """Refusals before data are loaded, in one line."""

  @pytest.mark.parametrize('flags, sentence', [
      ('', r'--task is not set\. Set it to one of shakespeare, '),
      ('--task=mnist', 'task.*mnist'),
      ('--algorithm=dpsgd', '--algorithm=dpsgd is neither one of fedsmp_topk, '),
      ('--p=0', r'--p must be a number > 0 and <= 1; got 0\.0'),
      ('--epsilon=1 --noise_multiplier=1', r'n=1\.0 and .*r=1\.0 exclude each other\. Remove'),
      ('--clip=nan', '--clip must be a finite number > 0; got nan'),
      (
          '--task=fashion_mnist --fashion_mnist_dirichlet=0',
          r'--fashion_mnist_dirichlet must be a finite number > 0; got 0\.0',
      ),
      ('--sampling=shuffle', 'sampling.*shuffle'),
      (
          '--server_optimizer=fedexp --server_learning_rate=3',
          r'--server_learning_rate has no effect unless --server_optimizer=sgd\. Set that, or',
      ),
      ('--algorithm=fedavg --server_optimizer=fedexp', '--server_optimizer has no effect unless --al'),
      ('--max_client_examples=-1', '--max_client_examples must be an integer >= 0 .*; got -1'),
      ('--mask_rounds=2147483648', r'--mask_rounds must be .* <= 2147483647; got 2147483648'),
      ('--seed=-1', '--seed must be an integer >= 0 .*; got -1'),
      ('--shakespeare_lstm=keras', '--shakespeare_lstm has no effect unless --task=shakespea'),
      ('--algorithm=dp_fedavg --p=0.1', r'--p has no effect unless --algor.* or fedsmp_rel'),
      (
          '--algorithm=fedsmp_randk --public_clients=1',
          r'--public_clients has no effect unless --algorithm=fedsmp_topk or fedavg_topk\. Set',
      ),
      (
          '--warm_start=none --trainable=all --algorithm=dp_fedavg --public_examples=3',
          '--public_examples has no effect unless --algorithm=fedsmp_topk.*, or --warm_start',
      ),
      ('--warm_start=none', r'head requires pre-trained layers\. Set --warm_start=public, or'),
      ('--output_dir=/dev/null/x', '--output_dir=/dev/null/x can\'t be written'),
      ('--data_dir=/none', '/none/train-images-idx3-ubyte.gz does not'),
      ('--devices=GPU:9', "--devices has 'GPU:9', which TensorFlow does not see"),
      ('--devices=', '--devices is empty'),
      ('--runtime=ray --devices=GPU:0', r'--devices has no effect unless --runtime=local\.'),
      ('--ray_address=auto', r'--ray_address has no effect unless --runtime=ray\.'),
      ('--runtime=ray --ray_address=nowhere', '--ray_address=nowhere: .*Start the cluster'),
      ('--runtime=ray --ray_address=127.0.0.1:1', r'no Ray cluster answers.*\. Start the clus'),
      ('stray', r"'stray' is not a flag\. Flags start"),
  ])
  def test_bad_flags_get_one_line_and_status_2(self, capsys, tmp_path, flags, sentence):
    arguments = flags.split()
    if 'output_dir' not in flags:
      arguments.append(f'--output_dir={tmp_path}/run')
    if flags and not flags.startswith('--task'):
      arguments.insert(0, '--task=fashion_mnist')
    if 'data_dir' not in flags:  # The flag must be refused before data are read.
      arguments.append('--data_dir=/never/read')
    said = commands.say(capsys, *arguments)
    assert re.search(sentence, said), said
    assert '/never/read' not in said
    assert not (tmp_path / 'run').exists()

  def test_impossible_epsilon_and_examples_are_refused(self, capsys, data_dir, tmp_path):
    tiny = commands.tiny(data_dir, tmp_path / 'run', '--algorithm=fedsmp_topk')[1:]
    assert '--epsilon is out of reach: no noise multiplier' in commands.say(
        capsys, *tiny, '--epsilon=1e-12', '--delta=1e-9'
    )
    said = commands.say(capsys, *tiny, '--clients_per_round=13')
    assert '--clients_per_round must be from 1 to the number of clients, 12. Found 13.' in said
    said = commands.say(capsys, *tiny, '--noise_multiplier=1e-9')
    assert '--noise_multiplier is too small: ' in said and ' noise share, 2.9e-10 C. Set a' in said
    assert '--public_examples=60' in commands.say(capsys, *tiny, '--public_examples=60')
    assert '--public_clients=9 exceeds the 8 public examples' in commands.say(
        capsys, *tiny, '--public_clients=9'
    )
    assert not (tmp_path / 'run').exists()

  def test_help_shows_the_common_flags(self, capsys):
    assert commands.main(['run', '--help']) == 0
    text = capsys.readouterr().out
    assert sorted(_FLAG.findall(text)) == sorted([
        'task', 'algorithm', 'trainable', 'p', 'rounds', 'clients_per_round', 'seed', 'epsilon',
        'clip', 'server_learning_rate', 'output_dir', 'overwrite', 'dry_run',
    ])
    assert text.endswith('All flags: --helpfull\n')

  def test_full_help_names_every_flag_once(self, capsys):
    assert commands.main(['run', '--helpfull']) == 0
    text = capsys.readouterr().out
    assert sorted(_FLAG.findall(text)) == sorted(settings.new_flags())
    rate = ' '.join(text.split('--server_learning_rate=NUMBER')[1].split('\n  --')[0].split())
    assert '(default by task: shakespeare 8.0 (fedsmp_randk 30.0), fashion_mnist 30.0 (' in rate
    assert '\nOnly for --algorithm=fedsmp_topk or fedavg_topk:\n  --public_clients=INTEGER\n' in text
