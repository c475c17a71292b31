"""Checks that an interrupted run has the files of an undisturbed run."""

import os
import time


def files(out):
  """All that must be equal between two runs of one seed."""
  names = ('metrics.csv', 'summary.json', 'weights.npz')
  return {name: (out / name).read_bytes() for name in names}


def assert_equal(out, other):
  expected, actual = files(other), files(out)
  assert [name for name in expected if expected[name] != actual[name]] == []


def assert_no_leftovers(out):
  names = [*os.listdir(out), *os.listdir(out / 'checkpoints')]
  assert not [name for name in names if 'unfinished' in name]
  assert len(checkpoints(out)) <= 3


def checkpoints(out):
  """The rounds of a run's checkpoints, in order."""
  names = [path.stem for path in (out / 'checkpoints').glob('round_*.npz')]
  return sorted(int(name.removeprefix('round_')) for name in names)


def lines(out):
  """The lines of a run's metrics.csv; none before it is there."""
  path = out / 'metrics.csv'
  return path.read_bytes().splitlines() if path.exists() else []


def wait_for_rounds(command, out, rounds):
  """Waits until the table of a running command has a number of rounds."""
  while len(lines(out)) < rounds + 2:
    assert command.poll() is None, command.communicate()
    time.sleep(0.02)
