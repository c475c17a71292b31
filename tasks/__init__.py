"""Experiments: the paper's tasks and settings, and the commands that run them."""

import importlib.util
import os
import sys

if importlib.util.find_spec('absl') is None:
  # `python -m tasks.run` with another Python than the one that make has set up.
  sys.exit(
      f'tasks: {sys.executable} lacks the packages of requirements.txt; run `make run` once, then'
      ' `. .venv/bin/activate` in this shell.'
  )

# Matrix products of small batches take half the time with oneDNN. TensorFlow has it on by default
# only for processors with AVX-512; on everywhere, two kinds of processors differ in less.
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
