"""One TFF context, so one worker, for all tests of a pytest process."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import pytest


@pytest.fixture(scope='session', autouse=True)
def tff_context_of_the_tests():
  from fedsmp_tff import runtime

  runtime.set_tff_context()
