"""Tests of signals outside of rounds, and of what a command leaves in the temporary directory."""

import contextlib
import signal
import subprocess
import sys
import time

import pytest

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
  command = commands.command(arguments)
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
  """A process whose signals are of a `Signals`, `stop`, around this body."""
  process = subprocess.Popen(
      [
          sys.executable, '-c',
          'import hashlib, os, signal, threading, time\n'
          'from tasks.cli import signals\n'
          'stop = signals.Signals("tasks.run")\n'
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


@pytest.mark.parametrize('before', ['', '  stop.begin_round()\n  stop.in_round = False\n'])
def test_outside_of_rounds_a_signal_ends_a_long_call(before):
  with _started(f'{before}  signal_soon(signal.SIGTERM)\n  {_LONG}\n') as process:
    _, err = process.communicate(timeout=waiting.SECONDS)
  assert process.returncode == 143
  assert err.strip() == 'tasks.run: ended by SIGTERM; the same command resumes it.'


def test_in_a_round_only_a_second_signal_ends_a_long_call():
  with _started(f'  stop.begin_round()\n  signal_soon(signal.SIGTERM)\n  {_LONG}\n') as process:
    waiting.until_line(process.stderr, 'tasks.run: SIGTERM: the run ends after the round in flight')
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=waiting.SECONDS)
  assert process.returncode == 130
  assert err.strip() == 'tasks.run: ended by SIGINT; the same command resumes it.'


def test_a_background_job_still_ignores_sigint():
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # The process inherits it, as from a shell.
  try:
    with _started('  stop.begin_round()\n  print("begun", file=__import__("sys").stderr, flush=True)\n'
                  '  time.sleep(6000)\n') as process:
      waiting.until_line(process.stderr, 'begun')
      process.send_signal(signal.SIGINT)
      process.send_signal(signal.SIGTERM)
      waiting.until_line(process.stderr, 'tasks.run: SIGTERM: the run ends after')
  finally:
    signal.signal(signal.SIGINT, before)


def test_two_sigterm_at_once_are_one_request():
  # As of a batch system that signals every process, and of a sweep that forwards its own.
  with _started(f'  stop.begin_round()\n  signal_soon(signal.SIGTERM)\n  {_LONG}\n') as process:
    waiting.until_line(process.stderr, 'tasks.run: SIGTERM: the run ends after the round in flight')
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None


def test_a_signal_ends_the_command_though_the_clean_up_fails():
  fault = '  import psutil; psutil.Process = None\n'
  with _started(f'{fault}  signal_soon(signal.SIGTERM)\n  {_LONG}\n') as process:
    process.communicate(timeout=waiting.SECONDS)
  assert process.returncode == 143
