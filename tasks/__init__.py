"""Experiments: the paper's tasks and settings, and the commands that run them."""

import importlib.util
import os
import sys

if importlib.util.find_spec('absl') is None:
  # `python -m tasks.run` was started with a Python other than make's.
  sys.exit(
      f'tasks: {sys.executable} lacks the packages of requirements.txt. Run `make run` once, then'
      ' `. .venv/bin/activate` in this shell.'
  )

# oneDNN halves the time of matrix products of small batches. TensorFlow enables it by default only
# on CPUs with AVX-512; enabling it on all CPUs makes their results differ less.
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
# Silences TensorFlow's own log, errors included, unless the variable is set.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
