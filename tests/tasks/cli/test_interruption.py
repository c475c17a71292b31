"""Tests of signals outside of rounds, and of what a command leaves in the temporary directory."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tasks.cli import interruption
from tests.support import commands
from tests.support import waiting


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
  """The temporary directory of the commands; nothing is left there."""
  path = tmp_path / 'tmp'
  path.mkdir()
  monkeypatch.setenv('TMPDIR', str(path))
  yield path
  assert not [*path.rglob('*')]


@pytest.mark.parametrize('number, status', [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_before_round_0_ends_the_run_soon(
    data_dir, tmp_path, number, status
):
  out = tmp_path / 'a'
  arguments = commands.tiny(data_dir, out, '--algorithm=fedavg')
  command = commands.command(arguments, commands.LONG_GRACE)
  waiting.until_line(command.stdout, 'output: ')  # TensorFlow compiles and measures now.
  command.send_signal(number)
  printed, err = commands.ended(command, status)
  assert err.splitlines()[-1] == (
      f'tasks.run: ended by {signal.Signals(number).name}; the same command with'
      f' --output_dir={out} resumes it.'
  )
  assert 'in flight' not in err and 'rounds done' not in printed
  assert '3 of 3 rounds done' in commands.ended(commands.command(arguments))[0]


@contextlib.contextmanager
def _started(body):
  """A process whose signals are an `Interruption`'s, `stop`, around this body."""
  process = subprocess.Popen(
      [
          sys.executable, '-c',
          'import hashlib, os, signal, threading, time\n'
          'from tasks.cli import interruption\n'
          'interruption._GRACE_SECONDS = 100000.0\n'
          'stop = interruption.Interruption()\n'
          'stop.next_step = "; the same command resumes it."\n'
          # Measured by its own clock, which shows that the main thread is in the long call.
          'clock = time.pthread_getcpuclockid(threading.main_thread().ident)\n'
          'def signal_in_call(number, begun):\n'
          '  while time.clock_gettime(clock) < begun + 0.2:\n'
          '    time.sleep(0.01)\n'
          '  os.kill(os.getpid(), number)\n'
          'def signal_soon(number):\n'
          '  threading.Thread(\n'
          '      target=signal_in_call, args=(number, time.clock_gettime(clock))\n'
          '  ).start()\n'
          f'with stop.handled():\n{body}',
      ],
      stderr=subprocess.PIPE, text=True,
  )
  try:
    yield process
  finally:
    process.kill()
    process.communicate()


# One call of C, which takes minutes: other threads run, but Python calls no handler within, as in
# TensorFlow's operations.
_LONG = 'hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)'


@pytest.mark.parametrize('before', ['', '  with stop.rounds():\n    stop.check()\n'])
def test_outside_of_rounds_an_operation_in_flight_gets_no_grace(before):
  with _started(f'{before}  signal_soon(signal.SIGTERM)\n  {_LONG}\n') as process:
    _, err = process.communicate(timeout=waiting.SECONDS)
  assert process.returncode == 143
  assert err.strip() == 'tasks.run: ended by SIGTERM; the same command resumes it.'


def test_a_round_in_flight_gets_the_grace():
  with _started(
      f'  with stop.rounds():\n    stop.check()\n    signal_soon(signal.SIGTERM)\n    {_LONG}\n'
  ) as process:
    line = 'tasks.run: SIGTERM: the round in flight has 100000 s to finish'
    waiting.until_line(process.stderr, line)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=waiting.SECONDS)
  assert process.returncode == 130
  assert err.strip() == 'tasks.run: SIGINT again: ended; the same command resumes it.'


def test_an_abandoned_round_with_an_error_is_interrupted(monkeypatch):
  monkeypatch.setattr(interruption, '_GRACE_SECONDS', 0.01)
  stop = interruption.Interruption()
  with pytest.raises(interruption.Interrupted) as raised:
    with stop.handled(), stop.rounds():
      stop.check()
      try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
      except KeyboardInterrupt as error:
        # As a callback of C++ does.
        raise SystemError('a function returned with an exception set') from error
  assert raised.value.status == 143


def test_an_interrupt_lost_in_a_destructor_comes_again(monkeypatch, capsys):
  monkeypatch.setattr(interruption, '_GRACE_SECONDS', 0.01)

  class Slow:

    def __del__(self):
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(5)  # Ends with the interrupt.

  stop = interruption.Interruption()
  with pytest.raises(interruption.Interrupted) as raised:
    with stop.handled(), stop.rounds():
      stop.check()
      Slow()
      time.sleep(5)
  assert raised.value.status == 143
  assert 'Exception ignored' not in capsys.readouterr().err


def test_a_failure_after_an_abandoned_round_is_named(monkeypatch):
  monkeypatch.setattr(interruption, '_GRACE_SECONDS', 0.01)
  stop = interruption.Interruption()
  with pytest.raises(OSError, match='No space'):
    with stop.handled(failures=(OSError,)), stop.rounds():
      stop.check()
      try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
      except interruption.Interrupted:
        raise OSError('No space left on device') from None
