"""What all tests have: one TFF context, this process itself, and the surroundings of commands."""

import os
import pathlib
import signal

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')  # As `tasks` sets it.
# gRPC, which other tests use here, would speak up in commands that are started.
os.environ.setdefault('GRPC_ENABLE_FORK_SUPPORT', '0')
# Commands that tests start import this tree, wherever pytest was started.
os.environ['PYTHONPATH'] = str(pathlib.Path(__file__).parent)

import pytest
import tensorflow as tf

from fedsmp_tff.runtime import graphs

# Checks that tests share: failures show the values there too.
pytest.register_assert_rewrite('tests.support')

# A shell's background job ignores SIGINT, and so would the commands that tests start and signal.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Both are settled before TensorFlow runs anything. Several devices stand for GPUs.
graphs.use_one_thread_per_op()
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

# Files of tests that take half a minute and more, the longest first.
_LONGEST = (
    'test_planted', 'test_ending', 'test_run', 'test_audit', 'test_resuming', 'test_account',
    'test_learning_process', 'test_round', 'test_guarantee', 'test_map_reduce',
)


def pytest_collection_modifyitems(items):
  """Begins with the longest files, so that all processes end at about the same time."""
  items.sort(key=lambda item: [*_LONGEST, item.path.stem].index(item.path.stem))


@pytest.fixture(scope='session', autouse=True)
def context_of_the_tests():
  """Runs what tests and examples compute in this process."""
  from fedsmp_tff import runtime

  runtime.set_local_context()
