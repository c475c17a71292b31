"""Tests that a run on a Ray cluster survives the death of a node."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import portpicker
import psutil
import pytest

from tests.support import commands
from tests.support import waiting


def _ray_node(ip, *arguments):
  """Starts a Ray node; returns its processes, which `ray start` leaves behind.

  Each node has an address of its own: of two on one, the driver joins either.
  """
  mark = {'NODE_OF_TEST': f'{os.getpid()} {ip}'}  # Inherited; other tests may run now.
  subprocess.run(
      [
          os.path.join(os.path.dirname(sys.executable), 'ray'), 'start', '--num-cpus=1',
          f'--node-ip-address={ip}', '--disable-usage-stats', *arguments,
      ],
      check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
      env={**os.environ, **mark},
  )
  started = []
  for process in psutil.process_iter():
    # Some end soon, some are not ours to look into.
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
      if process.environ().items() >= mark.items():
        started.append(process)
  return started


def _command_line(process):
  try:
    return ' '.join(process.cmdline())
  except psutil.NoSuchProcess:
    return ''


@contextlib.contextmanager
def _head():
  """Starts a head node; yields its address, its processes and its directory."""
  port = portpicker.pick_unused_port()
  # A directory of its own: Ray remembers the last cluster of a machine in the usual one. Not
  # pytest's: the names of sockets are short.
  directory = tempfile.mkdtemp(prefix='ray')
  nodes = _ray_node(
      '127.0.0.1', '--head', f'--port={port}', '--include-dashboard=false',
      f'--temp-dir={directory}'
  )
  try:
    yield f'127.0.0.1:{port}', nodes, pathlib.Path(directory)
  finally:
    _kill(nodes)
    shutil.rmtree(directory, ignore_errors=True)


def _kill(processes):
  for process in processes:
    with contextlib.suppress(psutil.NoSuchProcess):
      for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
          child.kill()
      process.kill()


@pytest.mark.slow
def test_a_killed_node_changes_nothing(data_dir, tmp_path):
  # Enough steps that a round takes seconds, all 12 clients in it.
  longer = ['--seed=1', '--clients_per_round=12', '--local_epochs=200', '--rounds=4']
  # A process of its own: TensorFlow reads some of its settings once.
  commands.ended(commands.started(commands.tiny(data_dir, tmp_path / 'local', *longer)))
  with _head() as (address, nodes, directory):
    other = _ray_node('127.0.0.2', f'--address={address}')
    # Ray notes which node a machine is, for drivers: the last one that started there.
    # On two machines the driver's would be the first.
    note = directory / 'session_latest' / 'node_ip_address.json'
    note.write_text(json.dumps({'node_ip_address': '127.0.0.1'}))
    nodes += other
    out = tmp_path / 'ray'
    arguments = commands.tiny(data_dir, out, *longer, '--runtime=ray', f'--ray_address={address}')
    command = commands.started(arguments)
    [raylet] = [p for p in other if 'raylet/raylet' in _command_line(p)]

    def is_in_a_round():
      assert command.poll() is None, command.communicate()
      table = out / 'timings.csv'
      return table.exists() and len(commands.rows(table)) >= 2 and any(
          'Actor.run' in _command_line(child) for child in raylet.children()
      )

    # In the middle of a round: a client runs on the node that dies.
    waiting.until(is_in_a_round)
    _kill([raylet])
    assert len(commands.rows(out / 'timings.csv')) < 5  # It is not over yet.
    assert '4 of 4 rounds done' in commands.ended(command)[0]
  assert commands.story(out) == commands.story(tmp_path / 'local')


@pytest.mark.slow
@pytest.mark.parametrize('killed, sentence, has_summary', [
    ('gcs/gcs_server', 'tasks.run: The head node is lost: no Ray cluster answers at ', True),
    # Ray's C++ ends the process of the run with the node that it is on.
    ('raylet/raylet', 'This process was ended at once', False),
])
def test_a_killed_head_node_ends_the_run_with_a_sentence(
    data_dir, tmp_path, killed, sentence, has_summary
):
  with _head() as (address, nodes, _):
    out = tmp_path / 'ray'
    command = commands.started(commands.tiny(
        data_dir, out, '--seed=1', '--clients_per_round=12', '--local_epochs=100', '--rounds=60',
        '--runtime=ray', f'--ray_address={address}',
    ))
    table = out / 'timings.csv'
    waiting.until(lambda: table.exists() and len(commands.rows(table)) >= 2)
    _kill([node for node in nodes if killed in _command_line(node)])
    _, said = commands.ended(command, status=1)
  assert said.count(sentence) == 1
  assert (out / 'summary.json').exists() == has_summary
