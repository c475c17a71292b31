"""Tests that commands answer what needs no TensorFlow without importing it: that takes seconds."""

import json
import subprocess
import sys

import pytest

# Runs a command in a process of its own; its last line is what it imported.
_RUN = """
import json, runpy, sys
sys.argv = sys.argv[1:]
try:
  runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
except SystemExit as error:
  status = error.code or 0
heavy = [n for n in ('tensorflow', 'tensorflow_federated', 'ray') if n in sys.modules]
print()
print(json.dumps([status, heavy]))
"""


def _run(*command):
  """A command's exit status, stdout and stderr; fails if it imported a heavy package."""
  done = subprocess.run(
      [sys.executable, '-c', _RUN, *command], capture_output=True, text=True, check=True
  )
  said, _, last = done.stdout.rstrip().rpartition('\n')
  status, heavy = json.loads(last)
  assert not heavy, f'{command} imports {heavy}'
  return status, said, done.stderr


@pytest.mark.parametrize('name', ['account', 'report', 'run', 'sweep', 'tune'])
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
