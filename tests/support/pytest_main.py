"""Runs pytest on its arguments, as the main program of a Bazel test."""

import sys

import pytest

if __name__ == '__main__':
  sys.exit(pytest.main(sys.argv[1:]))
