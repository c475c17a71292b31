"""The fixtures of tests that run commands."""

from tests.support.compiled_once import compiled_once  # noqa: F401
from tests.support.fixtures import checkpoint_each_round  # noqa: F401
from tests.support.fixtures import data_dir  # noqa: F401
