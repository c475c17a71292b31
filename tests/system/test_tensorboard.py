"""Tests that the lock's TensorBoard starts, and has a run's accuracies."""

import json
import subprocess
import sys
import urllib.error
import urllib.request

import portpicker
import pytest

from tests.support import commands
from tests.support import waiting


def _read(url):
  try:
    with urllib.request.urlopen(url, timeout=waiting.SECONDS) as page:
      return json.loads(page.read())
  except (urllib.error.URLError, ConnectionError):
    return {}


@pytest.mark.slow  # It imports TensorFlow.
def test_it_has_the_run(data_dir, tmp_path):
  assert commands.main(commands.tiny(data_dir, tmp_path / 'logs' / 'run')) == 0
  port = portpicker.pick_unused_port()
  with open(tmp_path / 'log', 'wb') as log:
    board = subprocess.Popen(
        [sys.executable, '-m', 'tensorboard.main', f'--logdir={tmp_path}/logs',
         '--host=127.0.0.1', f'--port={port}', '--load_fast=false'],
        stdout=log, stderr=log,
    )
  try:
    url = f'http://127.0.0.1:{port}/data/plugin/scalars/tags'

    def has_accuracies():
      assert board.poll() is None, (tmp_path / 'log').read_text()
      return 'test_accuracy' in _read(url).get('run', ())

    waiting.until(has_accuracies)
  finally:
    board.terminate()
    board.wait()
