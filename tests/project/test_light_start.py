"""Tests that commands answer what needs no TensorFlow without importing it: that takes seconds."""

import subprocess
import sys

import pytest

# Runs a command with one line of flags after the other.
_PROGRAM = """
import importlib, shlex, sys
command = importlib.import_module(f'tasks.{sys.argv[1]}')
for line in sys.argv[2:]:
  status = command.main([sys.argv[1], *shlex.split(line)])
  heavy = {'tensorflow', 'tensorflow_federated', 'ray'} & {*sys.modules}
  assert not heavy, f'{line} imports {heavy}'
  print(f'status {status}', file=sys.stderr)
"""
_REFUSED_RUNS = [
    '--task=shakespeare --p=2', '--task=svhn --shakespeare_data=tff',
    '--task=svhn --algorithm=fedavg --clip=1', '--task=no.such.module',
    '--task=svhn --trainable=head', '--flagfile=no_such.flags',
]
_COMPUTED = '--noise_multiplier=1.4 --clients_per_round=100 --population=6000 --rounds=180'


@pytest.mark.parametrize(
    'name', ['account', 'audit', 'benchmark', 'report', 'run', 'sweep', 'tune']
)
def test_help_refusals_and_accounting(name):
  answered = ['--help', '--helpfull', *([_COMPUTED] if name == 'account' else [])]
  refused = ['--no_such_flag=1', *(_REFUSED_RUNS if name == 'run' else [])]
  done = subprocess.run(
      [sys.executable, '-c', _PROGRAM, name, *answered, *refused], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.count('usage: ') == 2 and done.stdout.startswith('usage: ')
  assert ('Quote epsilon' in done.stdout) == (name == 'account')
  # One sentence for each refusal, and no other word.
  lines = done.stderr.splitlines()
  assert lines[: len(answered)] == ['status 0'] * len(answered)
  assert lines[len(answered) + 1 :: 2] == ['status 2'] * len(refused)
  assert len(lines) == len(answered) + 2 * len(refused) and 'no_such_flag' in lines[len(answered)]
