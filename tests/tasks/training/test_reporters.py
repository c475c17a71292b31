"""Tests of a run's lines of progress, in a process of its own."""

import itertools
import re

import pytest

from tests.support import commands
from tests.support import waiting


def test_the_first_line_comes_before_tensorflow(data_dir, tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONPROFILEIMPORTTIME', '1')  # A line for each import.
  process = commands.started(commands.tiny(data_dir, tmp_path / 'run', '--rounds=1'))
  lines = [*itertools.takewhile(lambda line: 'tensorflow' not in line, process.stderr)]
  process.kill()
  process.communicate()
  assert 'tasks.run: starting TensorFlow\n' in lines


@pytest.mark.parametrize('seconds', [0, 100_000])
def test_lines_of_progress(seconds, data_dir, tmp_path):
  flags = ('--algorithm=fedavg', '--rounds=6', '--rounds_per_evaluation=2')
  process = commands.command(
      commands.tiny(data_dir, tmp_path / 'run', *flags),
      {'tasks.training.reporters._SECONDS_PER_LINE': seconds},
  )
  printed, err = process.communicate(timeout=waiting.SECONDS)
  assert process.returncode == 0, err
  assert re.search(r'^  time +\d+:\d\d:\d\d \(h:mm:ss\) for all rounds', printed, re.MULTILINE)
  first, compiling, *lines = err.splitlines()
  assert re.fullmatch(r'round 0/6: loss [\d.]+, accuracy [\d.]+ %', first)
  assert compiling == 'compiling the first round'
  line = re.compile(
      r'round (\d)/6: loss [\d.]+, accuracy [\d.]+ %, [\d.e-]+ s a round, \d\d:\d\d left'
  )
  # The last in any case, however little time has passed.
  expected = ['1', '2', '3', '4', '5', '6'] if seconds == 0 else ['6']
  assert [line.fullmatch(text)[1] for text in lines] == expected
  assert lines[-1].endswith(' 00:00 left')
