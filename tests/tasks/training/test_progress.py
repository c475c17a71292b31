"""Tests of what a run prints while it runs, in a process of its own whose output is no terminal."""

import re
import time

from tests.support import commands

_SECONDS = 0.5
# A line may wait for the interpreter's lock, on a busy machine.
_SLACK = 10


def test_lines_come_in_time_and_say_what_is_done(data_dir, tmp_path):
  process = commands.command(
      commands.tiny(data_dir, tmp_path / 'run', '--algorithm=fedavg', '--rounds=30', f'--seconds_per_line={_SECONDS}')
  )
  times, lines = [], []
  for line in process.stderr:
    times.append(time.monotonic())
    lines.append(line)
  process.stdout.read()
  assert process.wait() == 0
  assert max(after - before for before, after in zip(times, times[1:])) < _SECONDS + _SLACK
  assert lines[0] == 'round 0/30: compiling\n'
  speed = re.compile(r'round \d+/30: .*[\d.e-]+ s a round, \d\d:\d\d left\n')
  assert any(map(speed.fullmatch, lines))
  assert any(re.match(r'round 30/30: loss .* 00:00 left', line) for line in lines)
  assert not any('round 31' in line for line in lines)
