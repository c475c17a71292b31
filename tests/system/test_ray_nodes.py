"""Tests that a run on a Ray cluster survives the death of a node."""

import json
import pathlib
import tempfile

import psutil
import pytest
from ray import cluster_utils

from tests.support import commands
from tests.support import waiting


@pytest.fixture
def cluster():
  """A cluster with a node that drivers join, and another one, `cluster.other`."""
  # The names of sockets are short, so pytest's directory does not do.
  with tempfile.TemporaryDirectory(prefix='ray', ignore_cleanup_errors=True) as directory:
    # Each node has an address of its own: of two on one, the driver joins either.
    head = dict(node_ip_address='127.0.0.1', include_dashboard=False, temp_dir=directory)
    nodes = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
      nodes.other = nodes.add_node(node_ip_address='127.0.0.2')
      # Ray notes for drivers which node a machine is: the last one that started there.
      note = pathlib.Path(directory) / 'session_latest' / 'node_ip_address.json'
      note.write_text(json.dumps({'node_ip_address': '127.0.0.1'}))
      yield nodes
    finally:
      nodes.shutdown()


@pytest.mark.slow
def test_a_killed_node_changes_nothing(cluster, data_dir, tmp_path):
  # Enough steps that a round takes seconds, all 12 clients in it.
  longer = ['--seed=1', '--clients_per_round=12', '--local_epochs=200', '--rounds=4']
  # A process of its own: TensorFlow reads some of its settings once.
  command = commands.started(commands.tiny(data_dir, tmp_path / 'local', *longer))
  _, err = command.communicate(timeout=waiting.SECONDS)
  assert command.returncode == 0, err
  out = tmp_path / 'ray'
  command = commands.started(commands.tiny(
      data_dir, out, *longer, '--runtime=ray', f'--ray_address={cluster.address}'
  ))
  (raylet,) = cluster.other.all_processes['raylet']
  raylet = psutil.Process(raylet.process.pid)

  def rounds():
    assert command.poll() is None, command.communicate()
    return len(commands.rows(out / 'timings.csv')) if (out / 'timings.csv').exists() else 0

  # In the middle of a round: a client runs on the node that dies.
  waiting.until(lambda: rounds() >= 2)
  waiting.until(
      lambda: rounds() and any('Actor.run' in ' '.join(c.cmdline()) for c in raylet.children())
  )
  cluster.remove_node(cluster.other, allow_graceful=False)
  assert rounds() < 5  # It is not over yet.
  printed, err = command.communicate(timeout=waiting.SECONDS)
  assert command.returncode == 0, err
  assert '4 of 4 rounds done' in printed
  assert commands.story(out) == commands.story(tmp_path / 'local')
