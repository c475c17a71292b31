"""Tests of what a run prints while it runs, in a process of its own whose output is no terminal."""

import re
import time

import psutil
import pytest

from tasks.training import progress
from tests.support import commands

_SECONDS = 0.5
# A line may wait for the interpreter's lock, on a busy machine.
_SLACK = 10


@pytest.mark.parametrize('seconds, text', [
    (0.4, '0 s'), (59.4, '59 s'), (59.6, '1 min 0 s'), (374, '6 min 14 s'), (3599.6, '1 h 0 min'),
    (9240, '2 h 34 min'),
])
def test_a_duration_names_its_units(seconds, text):
  assert progress.duration_text(seconds) == text


def test_the_first_line_comes_before_tensorflow(data_dir, tmp_path):
  process = commands.command(commands.tiny(data_dir, tmp_path / 'run', '--rounds=1'))
  line = process.stderr.readline()
  # Of the processor, on which others may run too; importing TensorFlow alone takes more.
  used = sum(psutil.Process(process.pid).cpu_times()[:2])
  process.kill()
  process.communicate()
  assert line == 'tasks.run: starting TensorFlow\n' and used < 2


def test_lines_come_in_time_and_say_what_is_done(data_dir, tmp_path):
  process = commands.command(
      commands.tiny(data_dir, tmp_path / 'run', '--algorithm=fedavg', '--rounds=30', f'--seconds_per_line={_SECONDS}')
  )
  assert process.stderr.readline() == 'tasks.run: starting TensorFlow\n'
  times, lines = [], []
  for line in process.stderr:
    times.append(time.monotonic())
    lines.append(line)
  printed = process.stdout.read()
  assert process.wait() == 0
  assert re.search(
      r'^  time +\d.* s since this command began; all rounds .* took \d+.* s$', printed, re.MULTILINE
  )
  assert max(after - before for before, after in zip(times, times[1:])) < _SECONDS + _SLACK
  assert lines[0] == 'round 0/30: compiling\n'
  speed = re.compile(r'round \d+/30: .*[\d.e-]+ s a round, \d\d:\d\d left\n')
  assert any(map(speed.fullmatch, lines))
  assert any(re.match(r'round 30/30: loss .* 00:00 left', line) for line in lines)
  assert not any('round 31' in line for line in lines)
