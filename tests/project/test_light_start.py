"""Tests that commands answer what needs no TensorFlow without importing it: that takes seconds."""

import subprocess
import sys

import pytest

_HEAVY = {'tensorflow', 'tensorflow_federated', 'ray'}


def _run(module, *flags):
  """A command's exit status, stdout and stderr; fails if it imported a heavy package."""
  done = subprocess.run(
      [sys.executable, '-X', 'importtime', '-m', module, *flags], capture_output=True, text=True
  )
  lines = done.stderr.splitlines(keepends=True)
  imports = [line for line in lines if line.startswith('import time:')]
  heavy = _HEAVY & {line.rpartition('|')[2].strip() for line in imports}
  assert imports and not heavy, f'{module} {flags} imports {heavy}'
  said = ''.join(line for line in lines if line not in imports)
  return done.returncode, done.stdout, said


@pytest.mark.parametrize(
    'name', ['account', 'audit', 'benchmark', 'report', 'run', 'sweep', 'tune']
)
class TestEveryCommand:

  @pytest.mark.parametrize('flag', ['--help', '--helpfull'])
  def test_help(self, name, flag):
    status, said, _ = _run(f'tasks.{name}', flag)
    assert status == 0 and said.startswith('usage: ')

  def test_a_flag_that_is_none(self, name):
    status, _, said = _run(f'tasks.{name}', '--no_such_flag=1')
    assert status == 2 and 'no_such_flag' in said and said.count('\n') == 1


@pytest.mark.parametrize('flags', [
    ['--task=shakespeare', '--p=2'],
    ['--task=shakespeare', '--svhn_dir=/tmp'],
    ['--task=svhn', '--algorithm=fedavg', '--clip=1'],
    ['--row=table_9/none'],
])
def test_values_that_a_run_refuses(flags):
  status, _, said = _run('tasks.run', *flags)
  assert status == 2 and said.count('\n') == 1


def test_accounting():
  status, said, _ = _run(
      'tasks.account', '--noise_multiplier=1.4', '--clients_per_round=100', '--population=6000',
      '--rounds=180',
  )
  assert status == 0 and 'Quote epsilon' in said
