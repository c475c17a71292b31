"""The fixtures of several directories of tests."""

import os

import pytest
from tensorflow.python.framework import config

from fedsmp_tff.program import checkpoints
from tests.support import small_data
from tests.support.compiled_once import compiled_once  # noqa: F401


@pytest.fixture(autouse=True)
def environment_without_determinism():
  """A seeded run in this process sets it, and later tests' processes would inherit it."""
  yield
  os.environ.pop('TF_DETERMINISTIC_OPS', None)


@pytest.fixture
def data_dir(tmp_path):
  small_data.write_fashion_mnist(tmp_path / 'data')
  return tmp_path / 'data'


@pytest.fixture
def checkpoint_each_round(monkeypatch):
  """Runs in this process write a checkpoint after each round, however long that takes."""
  monkeypatch.setattr(checkpoints, '_MAX_FRACTION_OF_TIME', 1e9)


@pytest.fixture
def without_determinism():
  """Undoes what a seeded run left on in this process: TFF's own parts draw without seeds."""
  was_on = config.is_op_determinism_enabled()
  config.disable_op_determinism()
  yield
  if was_on:
    config.enable_op_determinism()
