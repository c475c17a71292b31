"""Tests that a run on a Ray cluster survives the death of a node."""

import signal

import psutil
import pytest
from ray import cluster_utils

from tests.support import commands
from tests.support import waiting


@pytest.fixture
def cluster():
  # Each node has an address of its own: of two nodes at one address, the driver joins either.
  made = cluster_utils.Cluster(
      initialize_head=True, head_node_args={'num_cpus': 1, 'node_ip_address': '127.0.0.1'}
  )
  yield made
  made.shutdown()


@pytest.mark.slow
def test_a_killed_node_changes_nothing(data_dir, tmp_path, cluster):
  # Enough steps that a round takes seconds, all 12 clients in it.
  longer = ['--seed=1', '--clients_per_round=12', '--local_epochs=200', '--rounds=4']
  # A process of its own: TensorFlow reads some of its settings once.
  command = commands.started(commands.tiny(data_dir, tmp_path / 'local', *longer))
  _, err = command.communicate(timeout=waiting.SECONDS)
  assert command.returncode == 0, err
  other = cluster.add_node(num_cpus=1, node_ip_address='127.0.0.2')
  (raylet,) = other.all_processes['raylet']
  out = tmp_path / 'ray'
  command = commands.started(commands.tiny(
      data_dir, out, *longer, '--runtime=ray', f'--ray_address={cluster.address}'
  ))

  def is_in_a_round():
    assert command.poll() is None, command.communicate()
    table = out / 'timings.csv'
    names = (' '.join(child.cmdline()) for child in psutil.Process(raylet.process.pid).children())
    return table.exists() and len(commands.rows(table)) >= 2 and any(
        'Actor.run' in name for name in names  # Ray names a process by its call.
    )

  # In the middle of a round: a client runs on the node that dies.
  waiting.until(is_in_a_round)
  workers = psutil.Process(raylet.process.pid).children(recursive=True)
  for process in (raylet.process, *workers):
    process.send_signal(signal.SIGKILL)
  assert len(commands.rows(out / 'timings.csv')) < 5  # It is not over yet.
  printed, err = command.communicate(timeout=waiting.SECONDS)
  assert command.returncode == 0, err
  assert '4 of 4 rounds done' in printed
  assert commands.story(out) == commands.story(tmp_path / 'local')
