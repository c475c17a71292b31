"""The flags of the tasks, restored after each test."""

from absl import flags
from absl.testing import flagsaver
import pytest

from fedsmp_tff.program import checkpoints
from tasks import datasets  # noqa: F401  (defines the tasks' flags)
from tests.support import small_data


@pytest.fixture(autouse=True)
def flags_put_back():
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['test'])
  with flagsaver.flagsaver():
    yield


@pytest.fixture
def set_flags():
  """Sets flags of tasks, for their functions."""

  def parse(*arguments):
    return flags.FLAGS(['test', *arguments])

  return parse


@pytest.fixture
def data_dir(tmp_path):
  small_data.write_fashion_mnist(tmp_path / 'data')
  return tmp_path / 'data'


@pytest.fixture
def checkpoint_each_round(monkeypatch):
  """Runs in this process write a checkpoint after each round, however long that takes."""
  monkeypatch.setattr(checkpoints, '_SHARE_OF_TIME', 1e9)
