"""Checks that an interrupted run has the files of an undisturbed run."""

import glob
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
  assert not [n for n in os.listdir(out) if 'unfinished' in n]
  assert not glob.glob(f'{out}/checkpoints/*_temp*')
  assert len(glob.glob(f'{out}/checkpoints/round_*')) <= 3


def lines(out):
  """The lines of a run's metrics.csv; none before it is there."""
  path = out / 'metrics.csv'
  return path.read_bytes().splitlines() if path.exists() else []


def wait_for_rounds(command, out, rounds):
  """Waits until the table of a running command has a number of rounds."""
  while len(lines(out)) < rounds + 2:
    assert command.poll() is None, command.communicate()
    time.sleep(0.02)
