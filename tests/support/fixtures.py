"""Fixtures that several directories of tests have."""

import pytest

from fedsmp_tff.program import checkpoints
from tests.support import small_data


@pytest.fixture
def data_dir(tmp_path):
  small_data.write_fashion_mnist(tmp_path / 'data')
  return tmp_path / 'data'


@pytest.fixture
def checkpoint_each_round(monkeypatch):
  """Runs in this process write a checkpoint after each round, however long that takes."""
  monkeypatch.setattr(checkpoints, '_SHARE_OF_TIME', 1e9)
