"""The fixtures of tests that run commands."""

from tests.support.fixtures import checkpoint_each_round  # noqa: F401
from tests.support.fixtures import data_dir  # noqa: F401
from tests.support.fixtures import flags_put_back  # noqa: F401
from tests.support.fixtures import set_flags  # noqa: F401
