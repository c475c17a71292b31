"""Tests that commands answer what needs no TensorFlow without importing it: that takes seconds."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Runs a command with one line of flags after the other, and prints the exit statuses.
_PROGRAM = """
import importlib, shlex, sys
command = importlib.import_module(f'tasks.{sys.argv[1]}')
statuses = [command.main([sys.argv[1], *shlex.split(line)]) for line in sys.argv[2:]]
assert not {'tensorflow', 'tensorflow_federated', 'ray'} & {*sys.modules}
print(*statuses)
"""
_COMPUTED = '--noise_multiplier=1.4 --clients_per_round=100 --population=6000 --rounds=180'
_REFUSED_RUNS = [
    '--task=svhn --trainable=head', '--task=no.such.module', '--flagfile=no_such.flags',
]


@pytest.mark.parametrize('name, computed, refused', [
    *((name, [], []) for name in ('audit', 'benchmark', 'report', 'sweep', 'tune')),
    ('account', [_COMPUTED], []), ('run', [], _REFUSED_RUNS),
])
def test_light_commands_import_no_tensorflow(name, computed, refused):
  answered, refused = ['--help', '--helpfull', *computed], ['--no_such_flag=1', *refused]
  done = subprocess.run(
      [sys.executable, '-c', _PROGRAM, name, *answered, *refused], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines()[-1].split() == ['0'] * len(answered) + ['2'] * len(refused)
  # One sentence for each refusal, and no other word.
  assert len(done.stderr.splitlines()) == len(refused)
