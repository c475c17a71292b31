"""Tests that the lock's TensorBoard starts, and has a run's accuracies."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import portpicker
import pytest

from tests.support import commands

_SECONDS = 90


def _read(url):
  deadline = time.monotonic() + _SECONDS
  while True:
    try:
      with urllib.request.urlopen(url, timeout=5) as page:
        return json.loads(page.read())
    except (urllib.error.URLError, ConnectionError):
      if time.monotonic() > deadline:
        raise
      time.sleep(0.5)


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
    found = _read(url)
    deadline = time.monotonic() + _SECONDS
    while not found.get('run') and time.monotonic() < deadline:
      time.sleep(0.5)  # It reads the files after it has begun to listen.
      found = _read(url)
    assert 'test_accuracy' in found['run'], (tmp_path / 'log').read_text()
  finally:
    board.terminate()
    board.wait()
