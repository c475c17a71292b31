"""The fixtures of tests that run commands."""

import pytest
from tensorflow.python.framework import config

from tests.support.compiled_once import compiled_once  # noqa: F401
from tests.support.fixtures import data_dir  # noqa: F401


@pytest.fixture
def without_determinism():
  """Undoes what a seeded run left on in this process: TFF's own parts draw without seeds."""
  was_on = config.is_op_determinism_enabled()
  config.disable_op_determinism()
  yield
  if was_on:
    config.enable_op_determinism()
