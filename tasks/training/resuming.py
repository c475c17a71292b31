"""Begins a run or resumes it, with the flags, data and ledger that it began with."""

from collections.abc import Iterator
import contextlib
import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import os
import pathlib
import secrets
import subprocess
import sys
from typing import Any, Optional

import numpy as np

import fedsmp_tff
from fedsmp_tff.privacy import budget as budget_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import checkpoints as checkpoints_lib
from tasks import errors
from tasks.cli import place as place_lib
from tasks.cli import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.training import experiment as experiment_lib
from tasks.training import run_directory

_DATA_DIGEST = f'{run_directory.CHECKPOINTS}/data_digest.json'
_PACKAGES = ('tensorflow', 'tensorflow-federated', 'dp-accounting', 'numpy')
_REMEDY = 'restore it from a backup, or start over with --overwrite'


def check_data(out: run_directory.RunDirectory, experiment: experiment_lib.Experiment) -> None:
  """Raises `InputError` if the run began with other data, or a budget includes other clients."""
  if out.config is not None:
    path = out.path / _DATA_DIGEST
    try:
      recorded = json.loads(path.read_text(encoding='utf-8'))
      is_equal = recorded['digest'] == _digest(experiment.data, bytes.fromhex(recorded['key']))
    except (OSError, ValueError, KeyError, TypeError) as error:
      raise errors.InputError(
          f'{path} can\'t be read ({type(error).__name__}: {error}), and the run\'s data can\'t be'
          f' checked; {_REMEDY}.'
      ) from None
    if not is_equal:
      raise errors.InputError(
          f'--output_dir={out.path} has a run that began with other data'
          f' ({out.config["data_source"]}); restore that data, name another directory, or start'
          ' over with --overwrite.'
      )
  if experiment.settings.epsilon_budget is not None:
    name = _clients_name(experiment)
    names = {ledger_lib.read(path).data for path in run_directory.ledgers(out.path)}
    if others := sorted(names - {name}):
      raise errors.InputError(
          f'--epsilon_budget can\'t include the runs that --overwrite replaces in {out.path}: they'
          f' have other clients ({", ".join(others)}; this run: {name}), and one person may be in'
          ' several of them; name another directory.'
      )


def begin(
    out: run_directory.RunDirectory,
    experiment: experiment_lib.Experiment,
    place: place_lib.PlaceSettings,
) -> checkpoints_lib.Checkpoints:
  """Begins a run, or continues it; returns its checkpoints.

  Raises:
    InputError: If all checkpoints of the run are missing.
  """
  versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
  is_new = out.config is None
  if is_new:
    config = {
        **dataclasses.asdict(experiment.settings),
        **experiment.as_dict(),
        'runtime': dataclasses.asdict(place),
        'versions': versions,
        'flags': settings_lib.identity(experiment.settings),
        'seeds': experiment.seeds.public(),
        'run_id': secrets.token_hex(8),
        'record': record(),
    }
    # With a digest without a key anyone could test whether someone's data are in. The key stays
    # with the run's other secrets.
    key = secrets.token_bytes(32)
    digest = {'key': key.hex(), 'digest': _digest(experiment.data, key)}
    out.begin(config, {_DATA_DIGEST: digest})
  before = {**out.config['versions'], **out.config['runtime']}
  now = {**versions, 'runtime': place.runtime, 'devices': place.devices}
  for name, value in now.items():
    if value != before.get(name):
      print(
          f'tasks.run: {name} {before.get(name)} until now, {value} from here on; last bits may'
          ' differ.',
          file=sys.stderr,
      )
  directory = out.path / run_directory.CHECKPOINTS
  checkpoints = checkpoints_lib.Checkpoints(directory, out.config['run_id'].encode())
  if not is_new and checkpoints.empty():  # The run ended before its first checkpoint.
    if rounds := out.tables.metrics.num_rounds():
      raise errors.InputError(
          f'{out.tables.metrics.path} has rows of {rounds} rounds, but {directory} has no'
          f' checkpoint; {_REMEDY}.'
      )
    out.tables.remove()
  return checkpoints


@contextlib.contextmanager
def ledger(
    out: run_directory.RunDirectory, experiment: experiment_lib.Experiment, has_begun: bool
) -> Iterator[Optional[ledger_lib.Ledger]]:
  """Yields the open privacy ledger of a run; None without privacy.

  Args:
    out: The directory of the run.
    experiment: The run.
    has_begun: Whether rounds may have begun, so that there must be a ledger.

  Raises:
    InputError: If the runs that a budget must include can't be composed with this run.
    LedgerError: If the ledger is damaged, lost or another run's, or can't be written.
  """
  if not experiment.private:
    yield None
    return
  path, settings, budget = out.path / run_directory.LEDGER, experiment.settings, None
  if has_begun and not path.exists():
    raise ledger_lib.LedgerError(
        f'{path} is missing, but the run has begun; {ledger_lib.REMEDY}.'
    )
  if settings.epsilon_budget is not None:
    # The budget includes the rounds of the runs that --overwrite has replaced.
    former = [ledger_lib.read(other) for other in run_directory.ledgers(out.path) if other != path]
    try:
      budget = budget_lib.EpsilonBudget(
          settings.epsilon_budget, experiment.spec, [record.charged for record in former]
      )
    except ValueError as error:
      raise errors.as_flags(error, ('epsilon_budget', 'sampling')) from None
  initial_weights = 'random'
  if settings.warm_start != settings_lib.NONE:
    digest = experiment.data.public_digest()
    initial_weights = f'pre-trained on public examples, digest {digest}'
  with ledger_lib.Ledger(
      path, experiment.spec, out.config['run_id'], seed=experiment.seeds.process,
      data=_clients_name(experiment), initial_weights=initial_weights, budget=budget,
  ) as opened:
    if budget is not None:
      ledger_lib.check_independent(
          [(other, ledger_lib.read(other)) for other in run_directory.ledgers(out.path)]
      )
    yield opened


def _clients_name(experiment: experiment_lib.Experiment) -> str:
  """Returns the name of the data in ledgers, which is equal if the clients are."""
  task, digest = experiment.settings.task, experiment.data.split_digest
  return task if digest is None else f'{task} divided as {digest}'


def _digest(data: task_lib.TaskData, key: bytes) -> str:
  """Returns a digest of all examples: of every client in order, the test set and the public set."""
  digest = hashlib.blake2b(key=key, digest_size=32)
  for examples in (*data.clients, data.test, data.public or ()):
    for array in examples:
      digest.update(f'{array.dtype}{array.shape}'.encode())
      digest.update(np.ascontiguousarray(array))
  return digest.hexdigest()


def record() -> dict[str, Any]:
  """Returns the origin of a run, for config.json: code, time, command and machine."""
  # An installed copy may lie within another project's clone, as in its .venv.
  is_tracked = _git('ls-files', '--error-unmatch', pathlib.Path(__file__).name) is not None
  changed_files = _git('status', '--porcelain') if is_tracked else None
  return {
      'fedsmp_tff': fedsmp_tff.__version__,
      'git_commit': _git('rev-parse', 'HEAD') if is_tracked else None,
      'git_clean': None if changed_files is None else not changed_files,
      'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
      'command': ['python', '-m', 'tasks.run', *sys.argv[1:]],
      'processors': len(os.sched_getaffinity(0)),
  }


def _git(*arguments: str) -> Optional[str]:
  """Returns the output of git in this package's directory; None without git or a clone."""
  try:
    return subprocess.run(
        ['git', *arguments], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True,
        check=True, timeout=10,
    ).stdout.strip()
  except (OSError, subprocess.SubprocessError):
    return None
