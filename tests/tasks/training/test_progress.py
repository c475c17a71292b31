"""Tests of what a run prints while it runs, in a process of its own whose output is no terminal."""

import itertools
import re

import pytest

from tasks.training import progress
from tests.support import commands


@pytest.mark.parametrize('seconds, text', [
    (0.4, '0 s'), (59.4, '59 s'), (59.6, '1 min 0 s'), (374, '6 min 14 s'), (3599.6, '1 h 0 min'),
    (9240, '2 h 34 min'),
])
def test_a_duration_names_its_units(seconds, text):
  assert progress.duration_text(seconds) == text


def test_the_first_line_comes_before_tensorflow(data_dir, tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONPROFILEIMPORTTIME', '1')  # A line for each import.
  process = commands.command(commands.tiny(data_dir, tmp_path / 'run', '--rounds=1'))
  lines = [*itertools.takewhile(lambda line: 'tensorflow' not in line, process.stderr)]
  process.kill()
  process.communicate()
  assert 'tasks.run: starting TensorFlow\n' in lines


def test_lines_come_meanwhile_and_say_what_is_done(data_dir, tmp_path):
  process = commands.command(
      commands.tiny(data_dir, tmp_path / 'run', '--algorithm=fedavg', '--rounds=30', '--seconds_per_line=0.1')
  )
  assert process.stderr.readline() == 'tasks.run: starting TensorFlow\n'
  lines = [*process.stderr]
  printed = process.stdout.read()
  assert process.wait() == 0
  assert re.search(
      r'^  time +\d.* s since this command began; all rounds .* took \d+.* s$', printed, re.MULTILINE
  )
  # More of them on a busy machine; without the thread that prints them there is none.
  assert lines[:3] == ['round 0/30: compiling\n'] * 3
  speed = re.compile(r'round \d+/30: .*[\d.e-]+ s a round, \d\d:\d\d left\n')
  assert any(map(speed.fullmatch, lines))
  assert any(re.match(r'round 30/30: loss .* 00:00 left', line) for line in lines)
  assert not any('round 31' in line for line in lines)
